// blame.hpp: what peers left in this rank's heap is checked before it becomes an address. What cannot be true
// is told once, with who wrote it; the buffer is of no use after that.
#pragma once

#include "ep/args.hpp"
#include "team/team.hpp"

DEEP_LL_TIER_BEGIN

// For one lane. False: it was the first to find something, and has told.
template <class Team>
TEAM_FN bool blame(const Team& team, const Common& args, const Nonsense& what) {
    if (!claim(team, &args.progress->blamed)) return true;
    args.verdict->nonsense = what;
    return false;
}

// The dispatch whose rows lie in the call's slot of recv, as labels name it.
TEAM_FN std::uint16_t dispatch_of(const Common& args) {
    return static_cast<std::uint16_t>(args.progress->received[args.recv_slot]);
}

// A source's rows for an expert, as layout_range has them.
TEAM_FN std::int64_t range_of(std::uint32_t begin, std::uint32_t count) {
    return static_cast<std::int64_t>(begin) << 32 | count;
}
TEAM_FN std::uint32_t begin_of(std::int64_t range) {
    return static_cast<std::uint32_t>(range >> 32);
}
TEAM_FN std::uint32_t count_of(std::int64_t range) {
    return static_cast<std::uint32_t>(range);
}
TEAM_FN bool contains(std::int64_t range, int row) {
    return static_cast<std::uint32_t>(row) - begin_of(range) < count_of(range);
}

// A row of a local expert.
struct RowPlace {
    int local;
    int row;
};

// A row has a label that cannot be: that of the source which its place was given to.
TEAM_FN Nonsense bad_label(const Common& args, Phase phase, const RowPlace& at, const Origin& found) {
    const Shape& shape = args.shape;
    const std::int64_t* ranges = args.layout_range + at.local * shape.num_ranks;
    int peer = 0;
    while (peer + 1 < shape.num_ranks && !contains(ranges[peer], at.row)) ++peer;
    const Origin right{static_cast<std::uint16_t>(peer), dispatch_of(args),
                       static_cast<std::uint16_t>(shape.max_tokens),
                       static_cast<std::uint16_t>(shape.num_topk)};
    return {Nonsense::Of::label, peer, phase, at.row, found.word(), right.word()};
}

DEEP_LL_TIER_END
