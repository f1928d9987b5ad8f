// signal.hpp: publishing and awaiting words on a host.
#pragma once

#include <atomic>

#include "symm/doorbell.hpp"
#include "symm/gone.hpp"
#include "team/host/host_team.hpp"

DEEP_LL_TIER_BEGIN

constexpr std::int64_t kNapNs = 100'000'000;  // between two looks at the deadline

TEAM_FN void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <int kWords>
TEAM_FN void signal_by_link(const PeerMap& peers, int peer, const Word (&words)[kWords]) {
    LinkWord sent[kWords];
    for (int i = 0; i < kWords; ++i) sent[i] = {words[i].signal, signal_word(words[i].epoch, words[i].value)};
    peers.link->signal(peer, std::span<const LinkWord>(sent, kWords));
}

// The same words to every rank. Everything this team wrote before is visible to whoever acquires one of them.
// A rank is woken once.
template <class Team, int kWords>
TEAM_FN void publish_all(const Team&, const PeerMap& peers, const Word (&words)[kWords]) {
    peers.each([&](int peer) {
        if (peers.is_linked(peer)) return signal_by_link(peers, peer, words);
        for (const Word& word : words) {
            std::atomic_ref<std::uint64_t> to(peers.at<Signal>(peer, word.signal)->word);
            to.store(signal_word(word.epoch, word.value), std::memory_order_release);
        }
        ring(peers.at<HeapHeader>(peer, 0)->doorbell);
    });
}

// A word that was awaited, as its writer left it; what was written before it is visible.
template <class Team>
TEAM_FN std::uint64_t observe(const Team&, const PeerMap& peers, std::uint64_t signal) {
    return std::atomic_ref<std::uint64_t>(peers.mine<Signal>(signal)->word).load(std::memory_order_acquire);
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
    // Somebody who will never come, and has not.
    bool any_dead() const {
        for (int rank = first_; rank < peers_.size; ++rank)
            if (is_gone(peers_, rank) && !reached(load(rank), epoch_)) return true;
        return false;
    }
    void describe(WaitReport& report, std::uint32_t phase) const {
        report.expect(phase, epoch_);
        for (int rank = first_; rank < peers_.size; ++rank) report.note(rank, load(rank));
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
bool nap(Waiting& waiting,
         const PeerMap& peers,
         std::int64_t deadline_ns,
         const WaitPolicy& policy,
         WaitReport& report) {
    const std::int64_t left = deadline_ns == 0 ? kNapNs : deadline_ns - now_ns();
    if (left <= 0) report.outcome = WaitOutcome::timeout;
    if (left <= 0) return false;
    if (waiting.any_dead()) report.outcome = WaitOutcome::dead;
    if (report.outcome == WaitOutcome::dead) return false;
    Doorbell& bell = peers.mine<HeapHeader>(0)->doorbell;
    const std::uint64_t arrived = bell.arrived.load(std::memory_order_acquire);
    const std::uint64_t missing = waiting.count_missing();
    if (missing == 0) return true;
    const std::int64_t before = now_ns();
    if (peers.has_links()) peers.link->rest();
    sleep(
        bell, arrived, missing, left < kNapNs ? left : kNapNs,
        [](void* context) { return !static_cast<Waiting*>(context)->all(); }, &waiting);
    if (now_ns() - before < kNapNs / 2 || !policy.interrupted()) return true;
    report.outcome = WaitOutcome::interrupted;
    return false;
}

// Spins briefly, gives the core away a few times, then sleeps: many ranks on few cores must not burn the
// cores that the ranks they wait for need. False: it gave up, and `report` says on whom.
template <class Team, class SignalOf>
bool await_all(const Team&,
               const PeerMap& peers,
               std::uint32_t epoch,
               SignalOf signal_of,
               const WaitPolicy& policy,
               WaitReport& report,
               std::uint32_t phase) {
    Arrivals<SignalOf> arrivals(peers, epoch, signal_of);
    for (int i = 0; i < policy.num_pauses; ++i) {
        if (arrivals.all()) return true;
        pause_briefly();
    }
    for (int i = 0; i < policy.num_yields; ++i) {
        if (arrivals.all()) return true;
        if (!peers.has_links() || !peers.link->progress()) yield();
    }
    if (arrivals.all()) return true;
    const std::int64_t deadline_ns = policy.timeout_ns == 0 ? 0 : now_ns() + policy.timeout_ns;
    while (!arrivals.all()) {
        if (nap(arrivals, peers, deadline_ns, policy, report)) continue;
        arrivals.describe(report, phase);
        return false;
    }
    return true;
}

// For what the caller looks at once the call is over.
template <class Team>
TEAM_FN void tell_host(const Team&, std::uint32_t* word, std::uint32_t value) {
    *word = value;
}

DEEP_LL_TIER_END
