// signal.cuh: publishing and awaiting words of other ranks, of system scope.
#pragma once

#include "team/gpu/gpu_team.cuh"

DEEP_LL_TIER_BEGIN

// The same words to every rank, a lane for each. Everything this team wrote before is visible to whoever
// acquires one of them. The one fence makes a release of each store after it.
template <class Team, int kWords>
TEAM_FN void publish_all(const Team& team, const PeerMap& peers, const Word (&words)[kWords]) {
    team.sync();
    team.lanes(peers.size, [&](int peer) {
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
TEAM_FN bool await_word(const std::uint64_t* word,
                        std::uint32_t epoch,
                        std::uint64_t start_ns,
                        std::int64_t timeout_ns) {
    constexpr int kLooks = 64;  // between two looks at the clock
    for (int look = 1; !reached(load_relaxed_sys(word), epoch); ++look) {
        if (look % kLooks != 0 || timeout_ns == 0) continue;
        if (now_ns() - start_ns > static_cast<std::uint64_t>(timeout_ns)) return false;
    }
    return reached(load_acquire_sys(word), epoch);
}

// Waits until signal_of(rank) has reached `epoch` for every rank, a lane for each. False: it gave up, and
// `report` says on whom.
template <class Team, class SignalOf>
TEAM_FN bool await_all(const Team& team,
                       const PeerMap& peers,
                       std::uint32_t epoch,
                       SignalOf signal_of,
                       const WaitPolicy& policy,
                       WaitReport& report,
                       std::uint32_t phase) {
    const std::uint64_t start = now_ns();
    const int late = team.first(peers.size, [&](int rank) {
        return !await_word(&peers.mine<Signal>(signal_of(rank))->word, epoch, start, policy.timeout_ns);
    });
    if (late < 0) return true;
    team.once([&] {
        report.expect(phase, epoch);
        for (int rank = 0; rank < peers.size; ++rank)
            report.note(rank, load_relaxed_sys(&peers.mine<Signal>(signal_of(rank))->word));
        report.outcome = WaitOutcome::timeout;
    });
    return false;
}

// What the caller looks at while kernels run: after everything that this lane wrote before.
template <class Team>
TEAM_FN void tell_host(const Team&, std::uint32_t* word, std::uint32_t value) {
    store_release_sys(word, value);
}

DEEP_LL_TIER_END
