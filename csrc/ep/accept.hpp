// accept.hpp: choices that only kernels can read, checked where they are. A bad one counts as no choice, and
// the host hears of it.
#pragma once

#include "ep/args.hpp"
#include "team/team.hpp"

DEEP_LL_TIER_BEGIN

// Copies [num_tokens, num_topk] choices to `out`.
template <class Team>
TEAM_FN bool accept_choices(
    const Team& team, const Common& args, const Choices& choices, int num_tokens, std::int32_t* out) {
    constexpr std::int32_t kBad = -2;  // no choice, like -1
    const int num_topk = args.shape.num_topk, count = num_tokens * num_topk;
    const auto judge = [&](int i) {
        return choices.judge(i - i % num_topk, i % num_topk, args.shape.num_experts);
    };
    team.lanes(count, [&](int i) {
        out[i] = judge(i) == BadChoice::none ? static_cast<std::int32_t>(choices.at(i)) : kBad;
    });
    const int bad = team.first(count, [&](int i) { return out[i] == kBad; });
    if (bad < 0) return true;
    team.once([&] {
        if (args.verdict->has_bad_choice != 0) return;  // the host has not read the last one yet
        args.verdict->bad_choice = {judge(bad), bad / num_topk, bad % num_topk, choices.at(bad)};
        tell_host(team, &args.verdict->has_bad_choice, 1);
    });
    return true;
}

template <class League>
TEAM_FN bool accept(
    League& league, const Common& args, const Choices& choices, int num_tokens, std::int32_t* out) {
    return league.run(
        solo([&](const auto& team) { return accept_choices(team, args, choices, num_tokens, out); }));
}

DEEP_LL_TIER_END
