// ep_gpu.cu: the kernels on GPUs. setup.py compiles this file once for each row size it knows by heart
// (DEEP_LL_HIDDEN), and once for any (0). Profilers show deep_ll::hN::dispatch and deep_ll::hN::combine.
#include "ep/accept.hpp"
#include "ep/launch.hpp"
#include "ep/phases.hpp"
#include "team/gpu/league.cuh"
#include "team/gpu/logfmt.cuh"
#include "team/gpu/rearrange.cuh"

DEEP_LL_TIER_BEGIN

// Of what a launch was given the compiler knows that it is global memory, of a copy it does not.
template <class... Pointers>
TEAM_FN void all_global(Pointers... pointers) {
    (global_memory(pointers), ...);
}
TEAM_FN void all_global(const Common& args) {
    const Ledger& own = args.ledger;
    all_global(args.peers.bases, args.progress, args.verdict, args.layout_range);
    all_global(own.experts, own.ordinals, own.counts, own.base, own.received);
}
TEAM_FN void all_global(const DispatchArgs& args) {
    all_global(static_cast<const Common&>(args));
    all_global(args.x, args.recv_count, args.stats);
}
TEAM_FN void all_global(const CombineArgs& args) {
    all_global(static_cast<const Common&>(args));
    all_global(args.x, args.choices, args.weights, args.out);
}

// What a launch was given, with the row size that this tier knows at compile time.
template <class Args>
TEAM_FN decltype(auto) with_known_hidden(const Args& args) {
    if constexpr (DEEP_LL_HIDDEN == 0) {
        return (args);
    } else {
        Args known = args;
        known.shape.hidden = DEEP_LL_HIDDEN;
        all_global(known);
        return known;
    }
}

__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1)
    dispatch(const __grid_constant__ DispatchLaunch launch) {
    const auto& args = with_known_hidden(launch.args);
    League league(launch.league);
    if (launch.halves & kSend) {
        accept(league, args, launch.choices, args.num_tokens, args.ledger.experts);
        dispatch_send(league, args);
    }
    if (launch.halves & kReceive) dispatch_receive(league, args);
}

__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1)
    combine(const __grid_constant__ CombineLaunch launch) {
    const auto& args = with_known_hidden(launch.args);
    League league(launch.league);
    if (launch.halves & kSend) {
        accept(league, args, launch.choices, args.num_tokens, args.choices);
        combine_send(league, args);
    }
    if (launch.halves & kReceive) combine_receive(league, args);
}

__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1)
    credit(const __grid_constant__ CombineLaunch launch) {
    League league(launch.league);
    if (launch.halves & kMeet)
        meet_all(league, launch.args);
    else
        await_credit(league, launch.args);
}

DEEP_LL_TIER_END
