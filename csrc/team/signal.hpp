// signal.hpp: the words by which ranks order each other's memory. docs/memory_model.md has a row for each
// use.
//
// A signal is one word in its reader's heap, with one writer: `epoch << 32 | value`. Epochs only grow (modulo
// 2^32), so nothing is ever cleared and a stale word is simply an older epoch.
#pragma once

#include <atomic>

#include "symm/doorbell.hpp"
#include "symm/peers.hpp"
#include "team/team.hpp"

namespace deep_ll {

struct Signal {
    std::uint64_t word;
};

TEAM_FN std::uint32_t epoch_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word >> 32);
}
TEAM_FN std::uint32_t value_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word);
}
TEAM_FN bool reached(std::uint64_t word, std::uint32_t epoch) {
    return static_cast<std::int32_t>(epoch_of(word) - epoch) >= 0;  // right across the wrap of 2^32
}

enum class WaitOutcome : std::uint32_t { done = 0, timeout = 1, interrupted = 2 };

// How a call ended, filled by the team that found out. Read by the caller, in this rank's memory.
struct WaitReport {
    WaitOutcome outcome;
    std::uint32_t expected_epoch;
    std::uint32_t num_missing;
    std::uint32_t missing[kMaxRanks];     // the ranks that did not publish
    std::uint32_t seen_epoch[kMaxRanks];  // and what was found of each
};

// How to wait. `interrupted` is asked about ten times a second and may end the wait.
struct WaitPolicy {
    std::int64_t deadline_ns;  // CLOCK_MONOTONIC; 0: none
    int num_pauses;
    int num_yields;
    bool (*interrupted)();
};

}  // namespace deep_ll

DEEP_LL_TIER_BEGIN

constexpr std::int64_t kNapNs = 100'000'000;  // between two looks at the deadline

TEAM_FN void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Everything this team wrote before is visible to whoever acquires the word. The peer is told, not woken: for
// words that are read later, with the next word that wakes.
template <class Team>
TEAM_FN void publish_quietly(const Team& team,
                             const PeerMap& peers,
                             int peer,
                             std::uint64_t signal,
                             std::uint32_t epoch,
                             std::uint32_t value) {
    team.sync();
    team.once([&] {
        std::atomic_ref<std::uint64_t> word(peers.at<Signal>(peer, signal)->word);
        word.store(static_cast<std::uint64_t>(epoch) << 32 | value, std::memory_order_release);
        return 0;
    });
}

template <class Team>
TEAM_FN void publish(const Team& team,
                     const PeerMap& peers,
                     int peer,
                     std::uint64_t signal,
                     std::uint32_t epoch,
                     std::uint32_t value) {
    publish_quietly(team, peers, peer, signal, epoch, value);
    team.once([&] {
        ring(peers.at<HeapHeader>(peer, 0)->doorbell);
        return 0;
    });
}

// The word as its writer left it; what the writer wrote before is visible.
template <class Team>
TEAM_FN std::uint64_t observe(const Team& team, const PeerMap& peers, std::uint64_t signal) {
    return team.once([&] {
        return std::atomic_ref<std::uint64_t>(peers.mine<Signal>(signal)->word)
            .load(std::memory_order_acquire);
    });
}

// Waits until signal_of(rank) has reached `epoch` for every rank. False: it gave up, and `report` says on
// whom.
template <class SignalOf>
class Arrivals {
   public:
    Arrivals(const PeerMap& peers, std::uint32_t epoch, SignalOf signal_of)
        : peers_(peers), epoch_(epoch), signal_of_(signal_of) {}

    // Skips what has arrived; true when all have.
    bool all() {
        while (first_ < peers_.size && reached(load(first_), epoch_)) ++first_;
        return first_ == peers_.size;
    }
    std::uint64_t count_missing() const {
        std::uint64_t missing = 0;
        for (int rank = first_; rank < peers_.size; ++rank) missing += !reached(load(rank), epoch_);
        return missing;
    }
    void describe(WaitReport& report) const {
        report.expected_epoch = epoch_;
        report.num_missing = 0;
        for (int rank = first_; rank < peers_.size; ++rank) {
            const std::uint64_t word = load(rank);
            if (reached(word, epoch_)) continue;
            report.missing[report.num_missing] = static_cast<std::uint32_t>(rank);
            report.seen_epoch[report.num_missing++] = epoch_of(word);
        }
    }

   private:
    std::uint64_t load(int rank) const {
        std::uint64_t& word = peers_.template mine<Signal>(signal_of_(rank))->word;
        return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire);
    }

    const PeerMap& peers_;
    const std::uint32_t epoch_;
    const SignalOf signal_of_;
    int first_ = 0;
};

// Sleeps once, until what is missing may have come; false when it is time to give up.
template <class Waiting>
bool nap(Waiting& waiting, const PeerMap& peers, const WaitPolicy& policy, WaitReport& report) {
    const std::int64_t left = policy.deadline_ns == 0 ? kNapNs : policy.deadline_ns - now_ns();
    if (left <= 0) report.outcome = WaitOutcome::timeout;
    if (left <= 0) return false;
    Doorbell& bell = peers.mine<HeapHeader>(0)->doorbell;
    const std::uint64_t arrived = bell.arrived.load(std::memory_order_acquire);
    const std::uint64_t missing = waiting.count_missing();
    if (missing == 0) return true;
    const std::int64_t before = now_ns();
    sleep(
        bell, arrived, missing, left < kNapNs ? left : kNapNs,
        [](void* context) { return !static_cast<Waiting*>(context)->all(); }, &waiting);
    if (now_ns() - before < kNapNs / 2 || !policy.interrupted()) return true;
    report.outcome = WaitOutcome::interrupted;
    return false;
}

// Spins briefly, gives the core away a few times, then sleeps: many ranks on few cores must not burn the
// cores that the ranks they wait for need.
template <class Team, class SignalOf>
bool await_all(const Team& team,
               const PeerMap& peers,
               std::uint32_t epoch,
               SignalOf signal_of,
               const WaitPolicy& policy,
               WaitReport& report) {
    return team.once([&] {
        Arrivals<SignalOf> arrivals(peers, epoch, signal_of);
        for (int i = 0; i < policy.num_pauses; ++i) {
            if (arrivals.all()) return true;
            pause_briefly();
        }
        for (int i = 0; i < policy.num_yields; ++i) {
            if (arrivals.all()) return true;
            yield();
        }
        while (!arrivals.all()) {
            if (nap(arrivals, peers, policy, report)) continue;
            arrivals.describe(report);
            return false;
        }
        return true;
    });
}

DEEP_LL_TIER_END
