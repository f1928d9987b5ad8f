// ep_tier.cpp: the kernels of one CPU level. setup.py compiles this file once for each, with its own flags.
#include "ep/combine.hpp"
#include "ep/dispatch.hpp"

DEEP_LL_TIER_BEGIN

namespace {

#define DEEP_LL_SOLO(name) solo([&](const HostTeam& team) { return name(team, args); })
#define DEEP_LL_WIDE(name) wide([&](const HostTeam& team) { name(team, args); })

bool dispatch_send(Pool& pool, const DispatchArgs& args) {
    return League(pool, args.num_teams)
        .run(DEEP_LL_SOLO(count), DEEP_LL_SOLO(announce), DEEP_LL_SOLO(place), DEEP_LL_WIDE(send),
             DEEP_LL_SOLO(deliver));
}

bool dispatch_receive(Pool& pool, const DispatchArgs& args) {
    return League(pool, args.num_teams).run(DEEP_LL_SOLO(await_rows), DEEP_LL_WIDE(unpack));
}

bool combine_send(Pool& pool, const CombineArgs& args) {
    return League(pool, args.num_teams).run(DEEP_LL_SOLO(credit), DEEP_LL_WIDE(push), DEEP_LL_SOLO(offer));
}

bool combine_receive(Pool& pool, const CombineArgs& args) {
    return League(pool, args.num_teams)
        .run(DEEP_LL_SOLO(await_outputs), DEEP_LL_WIDE(gather), DEEP_LL_SOLO(count_consumed));
}

bool await_credit(Pool& pool, const Common& args) {
    return League(pool, 1).run(DEEP_LL_SOLO(credit));
}

}  // namespace

#define DEEP_LL_TEXT_(x) #x
#define DEEP_LL_TEXT(x) DEEP_LL_TEXT_(x)

const Kernels& kernels();
const Kernels& kernels() {
    static constexpr Kernels table{DEEP_LL_TEXT(DEEP_LL_TIER),
                                   dispatch_send,
                                   dispatch_receive,
                                   combine_send,
                                   combine_receive,
                                   await_credit};
    return table;
}

DEEP_LL_TIER_END
