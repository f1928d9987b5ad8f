// signal.cuh: publishing and awaiting words of other ranks, of system scope.
#pragma once

#include "team/gpu/link.cuh"
#include "team/members.hpp"

DEEP_LL_TIER_BEGIN

// The same words to every rank, a lane for each. Everything this team wrote before is visible to whoever
// acquires one of them. The one fence makes a release of each store after it.
template <class Team, int kWords>
TEAM_FN void publish_all(const Team& team, const PeerMap& peers, const Word (&words)[kWords]) {
    const LastTold last(peers, words);
    team.sync();
    team.lanes(peers.size, [&](int peer) {
        if (peers.is_masked(peer)) return;
        if (peer == peers.rank) keep_boxes(peers, words);
        if (peers.ships_later(peer)) return tell_by_network(peers, peer, words, last);
        if constexpr (kWords > 1) fence_release_sys();
#pragma unroll
        for (const Word& word : words) {
            std::uint64_t* to = &peers.at<Signal>(peer, word.signal)->word;
            if constexpr (kWords > 1)
                store_relaxed_sys(to, signal_word(word.epoch, word.value));
            else
                store_release_sys(to, signal_word(word.epoch, word.value));
        }
    });
}

// A word that was awaited, as its writer left it.
template <class Team>
TEAM_FN std::uint64_t observe(const Team&, const PeerMap& peers, std::uint64_t signal) {
    return load_relaxed_sys(&peers.mine<Signal>(signal)->word);
}

// Polls without order, which costs nothing, then acquires once: the writer only ever stores with release, so
// the second load sees the same store or a later one. (An acquire in each turn would empty L1 each time.)
// False: it has not come in time, or is one that cannot be.
TEAM_FN bool await_word(const std::uint64_t* word,
                        const Awaited& awaited,
                        std::uint64_t start_ns,
                        std::int64_t timeout_ns) {
    constexpr int kLooks = 64;  // between two looks at the clock
    for (int look = 1; !reached(load_relaxed_sys(word), awaited.epoch); ++look) {
        if (look % kLooks != 0 || timeout_ns == 0) continue;
        if (now_ns() - start_ns > static_cast<std::uint64_t>(timeout_ns)) return false;
    }
    return epoch_of(load_acquire_sys(word)) - awaited.epoch <= awaited.most_ahead;
}

// What went to this rank by the network before such a word has landed. Not in time: false.
TEAM_FN bool await_network(const PeerMap& peers,
                           int rank,
                           const std::uint64_t* word,
                           const Awaited& awaited,
                           std::uint64_t start_ns,
                           std::int64_t timeout_ns) {
    if (!peers.ships_later(rank)) return true;
    const bool counted = awaited.parcel != Parcel::none;
    const std::uint64_t* first = counted ? box_at(peers, rank, awaited.box()) : word;
    if (!await_word(first, {awaited.phase, awaited.epoch, kAnyAhead}, start_ns, timeout_ns)) return false;
    see_what_landed(first);
    return true;
}

TEAM_FN void leave_note(const PeerMap& peers, int rank, std::uint64_t offset, std::uint64_t word) {
    store_release_sys(&peers.at<Signal>(rank, note_by(peers, peers.rank) + offset)->word, word);
}

// Tells a rank that it is left out. By one lane.
template <class Team>
TEAM_FN void tell_left_out(const Team&, const PeerMap& peers, int rank) {
    leave_note(peers, rank, offsetof(Note, evicted), 1);
}

// From now on the group goes on without `rank`, which is told so. By one lane.
template <class Team>
TEAM_FN void leave_out(const Team& team, const PeerMap& peers, int rank) {
    global_memory(peers.mask)[rank] = 1;
    tell_left_out(team, peers, rank);
}

// One lane's wait for one rank, where ranks may be left out: host/vigil.hpp says why who waits shows life.
class Vigil {
   public:
    TEAM_FN Vigil(std::int64_t timeout_ns, std::uint64_t start_ns)
        : timeout_ns_(static_cast<std::uint64_t>(timeout_ns)),
          start_ns_(start_ns),
          beaten_ns_(start_ns),
          looked_ns_(start_ns) {}

    // False: `rank` has been missing for too long.
    template <class Team>
    TEAM_FN bool look(const Team& team, const PeerMap& peers, int rank) {
        constexpr std::uint64_t kBeats = 8;  // within the deadline
        if (timeout_ns_ == 0) return true;
        const std::uint64_t now = now_ns();
        if (now - beaten_ns_ >= timeout_ns_ / kBeats) {
            beaten_ns_ = now;
            for (int peer = 0; peer < peers.size; ++peer) leave_note(peers, peer, offsetof(Note, beat), now);
        }
        if (now - looked_ns_ < timeout_ns_ / 2) return true;
        const bool is_first = looked_ns_ == start_ns_;
        const std::uint64_t beat = observe(team, peers, note_by(peers, rank) + offsetof(Note, beat));
        const bool is_silent = !is_first && beat == beat_;
        beat_ = beat;
        looked_ns_ = now;
        return now - start_ns_ < (is_silent ? 1 : 2) * timeout_ns_;
    }

   private:
    const std::uint64_t timeout_ns_, start_ns_;
    std::uint64_t beaten_ns_, looked_ns_;
    std::uint64_t beat_ = 0;  // at the last look
};

// As await_word, but who does not come is left out. Also ends when others have left this rank out. False: the
// epoch is one that cannot be.
template <class Team>
TEAM_FN bool await_member(const Team& team,
                          const PeerMap& peers,
                          int rank,
                          const std::uint64_t* word,
                          const Awaited& awaited,
                          Vigil vigil) {
    constexpr int kLooks = 64;
    for (int look = 1; !reached(load_relaxed_sys(word), awaited.epoch); ++look) {
        if (look % kLooks != 0) continue;
        for (int writer = 0; writer < peers.size; ++writer)
            if (evicts(team, peers, writer)) return true;
        if (vigil.look(team, peers, rank)) continue;
        leave_out(team, peers, rank);
        return true;
    }
    return epoch_of(load_acquire_sys(word)) - awaited.epoch <= awaited.most_ahead;
}

// Waits until signal_of(rank) has reached the epoch for every rank, a lane for each. False: it gave up, and
// `report` says on whom and why. With a mask it never gives up on peers but leaves them out, and fails only
// if they have left this rank out.
template <class Team, class SignalOf>
TEAM_FN bool await_all(const Team& team,
                       const PeerMap& peers,
                       const Awaited& awaited,
                       SignalOf signal_of,
                       const WaitPolicy& policy,
                       WaitReport& report) {
    const std::uint64_t start = now_ns();
    const int late = team.first(peers.size, [&](int rank) {
        const std::uint64_t* word = &peers.mine<Signal>(signal_of(rank))->word;
        if (peers.is_masked(rank)) return false;
        if (!await_network(peers, rank, word, awaited, start, policy.timeout_ns)) return true;
        const bool right = peers.can_shrink() ? await_member(team, peers, rank, word, awaited,
                                                             Vigil(policy.timeout_ns, start))
                                              : await_word(word, awaited, start, policy.timeout_ns);
        if (policy.costs != nullptr)
            global_memory(policy.costs)[rank] += static_cast<std::int64_t>(now_ns() - start);
        return !right;
    });
    if (peers.can_shrink() && !is_member(team, peers, awaited.epoch, report, awaited.phase)) return false;
    if (late < 0) return true;
    team.once([&] {
        report.expect(awaited);
        WaitOutcome outcome = WaitOutcome::beyond;
        for (int rank = 0; rank < peers.size; ++rank) {
            if (peers.is_masked(rank)) continue;
            const std::uint64_t word = what_has_come(peers, rank, signal_of(rank), awaited.box());
            report.note(rank, word, awaited);
            if (!reached(word, awaited.epoch)) outcome = WaitOutcome::timeout;
        }
        report.outcome = outcome;
    });
    return false;
}

template <class Team>
TEAM_FN bool claim(const Team&, std::uint32_t* word) {
    return add_release_gpu(word, 1) == 0;
}

// What the caller looks at while kernels run: after everything that this lane wrote before.
template <class Team>
TEAM_FN void tell_host(const Team&, std::uint32_t* word, std::uint32_t value) {
    store_release_sys(word, value);
}

DEEP_LL_TIER_END
