// ep_tier.cpp: the kernels of one CPU level. setup.py compiles this file once for each, with its own flags.
#include "ep/combine.hpp"
#include "ep/dispatch.hpp"

DEEP_LL_TIER_BEGIN

namespace {

#define DEEP_LL_PHASE(name) [&](const HostTeam& team) { return name(team, args); }

bool dispatch_send(Pool& pool, const DispatchArgs& args) {
    return League(pool).run(DEEP_LL_PHASE(count), DEEP_LL_PHASE(announce), DEEP_LL_PHASE(place), DEEP_LL_PHASE(send),
                            DEEP_LL_PHASE(deliver));
}

bool dispatch_receive(Pool& pool, const DispatchArgs& args) {
    return League(pool).run(DEEP_LL_PHASE(await_rows), DEEP_LL_PHASE(unpack));
}

bool combine_send(Pool& pool, const CombineArgs& args) {
    return League(pool).run(DEEP_LL_PHASE(credit), DEEP_LL_PHASE(push), DEEP_LL_PHASE(offer), DEEP_LL_PHASE(count_combine));
}

bool combine_receive(Pool& pool, const CombineArgs& args) {
    return League(pool).run(DEEP_LL_PHASE(await_outputs), DEEP_LL_PHASE(gather), DEEP_LL_PHASE(count_consumed));
}

bool await_credit(Pool& pool, const Common& args) { return League(pool).run(DEEP_LL_PHASE(credit)); }

}  // namespace

#define DEEP_LL_TEXT_(x) #x
#define DEEP_LL_TEXT(x) DEEP_LL_TEXT_(x)

const Kernels& kernels();
const Kernels& kernels() {
    static constexpr Kernels table{DEEP_LL_TEXT(DEEP_LL_TIER), dispatch_send,   dispatch_receive,
                                   combine_send,               combine_receive, await_credit};
    return table;
}

DEEP_LL_TIER_END
