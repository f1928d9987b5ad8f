// ep_tier.cpp: the kernels of one CPU level. setup.py compiles this file once for each, with its own flags.
#include "ep/kernels.hpp"
#include "ep/phases.hpp"
#include "team/host/logfmt.hpp"
#include "team/host/quantize.hpp"
#include "team/host/rearrange.hpp"
#include "team/host/signal.hpp"

DEEP_LL_TIER_BEGIN

namespace {

template <class Args, bool (*kPhases)(League&, const Args&)>
bool run(Pool& pool, int num_teams, const Args& args) {
    League league(pool, num_teams, args.policy.watch);
    return kPhases(league, args);
}

template <bool (*kPhases)(League&, const Common&)>
bool run_alone(Pool& pool, const Common& args) {
    League league(pool, 1, args.policy.watch);
    return kPhases(league, args);
}

}  // namespace

#define DEEP_LL_TEXT_(x) #x
#define DEEP_LL_TEXT(x) DEEP_LL_TEXT_(x)

const Kernels& kernels();
const Kernels& kernels() {
    static constexpr Kernels table{DEEP_LL_TEXT(DEEP_LL_TIER),
                                   run<DispatchArgs, dispatch_send<League>>,
                                   run<DispatchArgs, dispatch_receive<League>>,
                                   run<CombineArgs, combine_send<League>>,
                                   run<CombineArgs, combine_receive<League>>,
                                   run_alone<await_credit<League>>,
                                   run_alone<meet_all<League>>};
    return table;
}

DEEP_LL_TIER_END
