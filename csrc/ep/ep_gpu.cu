// ep_gpu.cu: the kernels on GPUs. setup.py compiles this file once for each row size it knows by heart
// (DEEP_LL_HIDDEN), and once for any (0). Profilers show deep_ll::hN::dispatch and deep_ll::hN::combine.
#include "ep/accept.hpp"
#include "ep/launch.hpp"
#include "ep/phases.hpp"
#include "team/gpu/league.cuh"
#include "team/gpu/rearrange.cuh"
#include "team/gpu/reduce.cuh"

DEEP_LL_TIER_BEGIN

// What a launch was given, with the row size that this tier knows at compile time.
template <class Args>
TEAM_FN Args with_known_hidden(const Args& args) {
    Args known = args;
    if constexpr (DEEP_LL_HIDDEN != 0) known.shape.hidden = DEEP_LL_HIDDEN;
    return known;
}

__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1)
    dispatch(const __grid_constant__ DispatchLaunch launch) {
    const auto args = with_known_hidden(launch.args);
    League league(launch.league);
    if (launch.halves & kSend) {
        accept(league, args, launch.choices, args.num_tokens, args.ledger.experts);
        dispatch_send(league, args);
    }
    if (launch.halves & kReceive) dispatch_receive(league, args);
}

__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1)
    combine(const __grid_constant__ CombineLaunch launch) {
    const auto args = with_known_hidden(launch.args);
    League league(launch.league);
    if (launch.halves & kSend) {
        accept(league, args, launch.choices, args.num_tokens, launch.kept);
        combine_send(league, args);
    }
    if (launch.halves & kReceive) combine_receive(league, args);
}

__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1)
    credit(const __grid_constant__ CombineLaunch launch) {
    League league(launch.league);
    await_credit(league, launch.args);
}

DEEP_LL_TIER_END
