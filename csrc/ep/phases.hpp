// phases.hpp: which phases make up a call. A solo phase runs on one team and may wait for peers; a wide one
// is shared by all teams. The line between two phases is the only order between teams.
#pragma once

#include "ep/combine.hpp"
#include "ep/dispatch.hpp"

DEEP_LL_TIER_BEGIN

#define DEEP_LL_SOLO(name) solo([&](const auto& team) { return name(team, args); }, #name)
#define DEEP_LL_WIDE(name) wide([&](const auto& team) { return name(team, args); }, #name)

template <class League>
TEAM_FN bool dispatch_send(League& league, const DispatchArgs& args) {
    if constexpr (kShipsLater)
        return league.run(DEEP_LL_SOLO(count), DEEP_LL_SOLO(announce), DEEP_LL_SOLO(place),
                          DEEP_LL_WIDE(send), DEEP_LL_WIDE(ship_rows), DEEP_LL_SOLO(deliver));
    return league.run(DEEP_LL_SOLO(count), DEEP_LL_SOLO(announce), DEEP_LL_SOLO(place), DEEP_LL_WIDE(send),
                      DEEP_LL_SOLO(deliver));
}

template <class League>
TEAM_FN bool dispatch_receive(League& league, const DispatchArgs& args) {
    return league.run(DEEP_LL_SOLO(await_rows), DEEP_LL_WIDE(unpack));
}

template <class League>
TEAM_FN bool combine_send(League& league, const CombineArgs& args) {
    if constexpr (kShipsLater)
        return league.run(DEEP_LL_SOLO(credit), DEEP_LL_WIDE(push), DEEP_LL_WIDE(ship_outputs),
                          DEEP_LL_SOLO(offer));
    return league.run(DEEP_LL_SOLO(credit), DEEP_LL_WIDE(push), DEEP_LL_SOLO(offer));
}

template <class League>
TEAM_FN bool combine_receive(League& league, const CombineArgs& args) {
    return league.run(DEEP_LL_SOLO(await_outputs), DEEP_LL_WIDE(gather), DEEP_LL_SOLO(count_consumed));
}

template <class League>
TEAM_FN bool meet_all(League& league, const Common& args) {
    return league.run(DEEP_LL_SOLO(meet));
}

template <class League>
TEAM_FN bool await_credit(League& league, const Common& args) {
    return league.run(DEEP_LL_SOLO(credit));
}

#undef DEEP_LL_SOLO
#undef DEEP_LL_WIDE

DEEP_LL_TIER_END
