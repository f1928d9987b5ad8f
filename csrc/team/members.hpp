// members.hpp: a group that goes on without some of its ranks. Who has a mask (PeerMap) leaves out whom it
// waited for in vain, tells it so in a note, and is told in the same way.
#pragma once

#include "team/team.hpp"

DEEP_LL_TIER_BEGIN

TEAM_FN std::uint64_t note_by(const PeerMap& peers, int writer) {
    return peers.notes + static_cast<std::uint64_t>(writer) * sizeof(Note);
}

// `writer` has left this rank out. Of two that leave each other out the lower one stays.
template <class Team>
TEAM_FN bool evicts(const Team& team, const PeerMap& peers, int writer) {
    if (observe(team, peers, note_by(peers, writer) + offsetof(Note, evicted)) == 0) return false;
    return !(peers.is_masked(writer) && peers.rank < writer);
}

// Nobody has left this rank out. All lanes get the same answer.
template <class Team>
TEAM_FN bool is_member(const Team& team, const PeerMap& peers) {
    return !peers.can_shrink() ||
           team.first(peers.size, [&](int writer) { return evicts(team, peers, writer); }) < 0;
}

// The same; if not, `report` says who did.
template <class Team>
TEAM_FN bool is_member(
    const Team& team, const PeerMap& peers, std::uint32_t epoch, WaitReport& report, std::uint32_t phase) {
    if (is_member(team, peers)) return true;
    team.once([&] {
        report.expect({phase, epoch, 0});
        for (int writer = 0; writer < peers.size; ++writer)
            if (evicts(team, peers, writer)) report.add(writer, epoch);
        report.outcome = WaitOutcome::evicted;
    });
    return false;
}

DEEP_LL_TIER_END
