// ep_gpu.cu: the kernels on GPUs. setup.py compiles this file once for each row size it knows by heart
// (DEEP_LL_HIDDEN), and once for any (0). Profilers show deep_ll::hN::dispatch and deep_ll::hN::combine.
#include "ep/accept.hpp"
#include "ep/launch.hpp"
#include "ep/phases.hpp"
#include "team/gpu/league.cuh"
#include "team/gpu/rearrange.cuh"
#include "team/gpu/reduce.cuh"

DEEP_LL_TIER_BEGIN

// The compiler may count on the row size that this tier is for.
TEAM_FN void assume_hidden(const Shape& shape) {
    if constexpr (DEEP_LL_HIDDEN != 0) __builtin_assume(shape.hidden == DEEP_LL_HIDDEN);
}

__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1)
    dispatch(const __grid_constant__ DispatchLaunch launch) {
    assume_hidden(launch.args.shape);
    League league(launch.league);
    if (launch.halves & kSend) {
        accept(league, launch.args, launch.choices, launch.args.num_tokens, launch.args.ledger.experts);
        dispatch_send(league, launch.args);
    }
    if (launch.halves & kReceive) dispatch_receive(league, launch.args);
}

__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1)
    combine(const __grid_constant__ CombineLaunch launch) {
    assume_hidden(launch.args.shape);
    League league(launch.league);
    if (launch.halves & kSend) {
        accept(league, launch.args, launch.choices, launch.args.num_tokens, launch.kept);
        combine_send(league, launch.args);
    }
    if (launch.halves & kReceive) combine_receive(league, launch.args);
}

__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1)
    credit(const __grid_constant__ CombineLaunch launch) {
    League league(launch.league);
    await_credit(league, launch.args);
}

DEEP_LL_TIER_END
