// signal.hpp: publishing and awaiting words on a host.
#pragma once

#include "symm/gone.hpp"
#include "team/host/faults.hpp"
#include "team/host/stopwatch.hpp"
#include "team/host/vigil.hpp"

DEEP_LL_TIER_BEGIN

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
    const auto told = static_cast<std::uint32_t>(now_ns() >> kToldShift);
    peers.each([&](int peer) {
        fault_point("peer");
        if (peers.is_linked(peer)) return signal_by_link(peers, peer, words);
        for (const Word& word : words) {
            tell_time(peers, peer, word.signal, told);
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

// The words that a wait is for: those of all ranks that are not left out.
template <class SignalOf>
class Arrivals {
   public:
    Arrivals(const PeerMap& peers, const Awaited& awaited, SignalOf signal_of)
        : peers_(peers), awaited_(awaited), signal_of_(signal_of) {}

    // Skips what has arrived; true when all have.
    bool all() {
        for (; first_ < peers_.size; ++first_) {
            if (peers_.is_masked(first_)) continue;
            const std::uint64_t word = load(first_);
            if (!reached(word, awaited_.epoch)) return false;
            any_beyond_ |= awaited_.is_beyond(word);
        }
        return true;
    }
    // An epoch of what has arrived is one that cannot be.
    bool any_beyond() const { return any_beyond_; }
    template <class F>
    void each_missing(F f) const {
        for (int rank = first_; rank < peers_.size; ++rank)
            if (is_missing(rank)) f(rank);
    }
    std::uint64_t count_missing() const {
        std::uint64_t missing = 0;
        each_missing([&](int) { ++missing; });
        return missing;
    }
    // One of the missing who will never come; -1: none.
    int dead() const {
        for (int rank = first_; rank < peers_.size; ++rank)
            if (is_gone(peers_, rank) && is_missing(rank)) return rank;
        return -1;
    }
    void describe(WaitReport& report) const {
        report.expect(awaited_);
        for (int rank = 0; rank < peers_.size; ++rank)
            if (!peers_.is_masked(rank)) report.note(rank, load(rank), awaited_);
    }

   private:
    bool is_missing(int rank) const {
        return !peers_.is_masked(rank) && !reached(load(rank), awaited_.epoch);
    }
    std::uint64_t load(int rank) const {
        std::uint64_t& word = peers_.template mine<Signal>(signal_of_(rank))->word;
        return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire);
    }

    const PeerMap& peers_;
    const Awaited awaited_;
    const SignalOf signal_of_;
    int first_ = 0;
    bool any_beyond_ = false;
};

// Before a nap: whether there is still something to wait for.
template <class Team, class Waiting>
bool goes_on(const Team& team, const PeerMap& peers, Waiting& waiting, Vigil& vigil, WaitReport& report) {
    if (!is_member(team, peers)) report.outcome = WaitOutcome::evicted;
    if (report.outcome == WaitOutcome::evicted) return false;
    if (vigil.is_over()) report.outcome = WaitOutcome::timeout;
    if (report.outcome == WaitOutcome::timeout) return false;
    vigil.look(team, waiting);
    for (int rank = waiting.dead(); rank >= 0; rank = waiting.dead()) {
        if (!peers.can_shrink()) report.outcome = WaitOutcome::dead;
        if (!peers.can_shrink()) return false;
        leave_out(team, peers, rank);
    }
    return true;
}

// Sleeps once, until what is missing may have come; false when it is time to give up.
template <class Team, class Waiting>
bool nap(const Team& team,
         Waiting& waiting,
         const PeerMap& peers,
         Vigil& vigil,
         const WaitPolicy& policy,
         WaitReport& report) {
    if (!goes_on(team, peers, waiting, vigil, report)) return false;
    Doorbell& bell = peers.mine<HeapHeader>(0)->doorbell;
    const std::uint64_t arrived = bell.arrived.load(std::memory_order_acquire);
    const std::uint64_t missing = waiting.count_missing();
    if (missing == 0) return true;
    const std::int64_t before = now_ns(), nap_ns = vigil.nap_ns();
    if (peers.has_links()) peers.link->rest();
    sleep(
        bell, arrived, missing, nap_ns, [](void* context) { return !static_cast<Waiting*>(context)->all(); },
        &waiting);
    vigil.woke(before, nap_ns);
    if (now_ns() - before < kNapNs / 2 || !policy.interrupted()) return true;
    report.outcome = WaitOutcome::interrupted;
    return false;
}

// Spins briefly, gives the core away a few times, then sleeps: many ranks on few cores must not burn the
// cores that the ranks they wait for need. False: not all have come.
template <class Team, class Waiting>
bool wait(
    const Team& team, Waiting& arrivals, const PeerMap& peers, const WaitPolicy& policy, WaitReport& report) {
    for (int i = 0; i < policy.num_pauses; ++i) {
        if (arrivals.all()) return true;
        pause_briefly();
    }
    for (int i = 0; i < policy.num_yields; ++i) {
        if (arrivals.all()) return true;
        if (!peers.has_links() || !peers.link->progress()) yield();
    }
    if (arrivals.all()) return true;
    Vigil vigil(peers, policy.timeout_ns);
    while (!arrivals.all())
        if (!nap(team, arrivals, peers, vigil, policy, report)) return false;
    return true;
}

// Waits until signal_of(rank) has reached the epoch for every rank. False: it gave up, and `report` says on
// whom and why. With a mask it never gives up on peers but leaves them out, and fails only if they have left
// this rank out.
template <class Team, class SignalOf>
bool await_all(const Team& team,
               const PeerMap& peers,
               const Awaited& awaited,
               SignalOf signal_of,
               const WaitPolicy& policy,
               WaitReport& report) {
    Arrivals<SignalOf> arrivals(peers, awaited, signal_of);
    Stopwatch<SignalOf> stopwatch(peers, awaited, signal_of, policy);
    bool come = arrivals.all();
    if (!come) {
        stopwatch.start();
        come = wait(team, arrivals, peers, policy, report);
    }
    stopwatch.stop();
    if (come && arrivals.any_beyond()) report.outcome = WaitOutcome::beyond;
    if (report.outcome != WaitOutcome::done) arrivals.describe(report);
    return is_member(team, peers, awaited.epoch, report, awaited.phase) &&
           report.outcome == WaitOutcome::done;
}

template <class Team>
TEAM_FN bool claim(const Team&, std::uint32_t* word) {
    return std::atomic_ref<std::uint32_t>(*word).exchange(1, std::memory_order_relaxed) == 0;
}

// For what the caller looks at once the call is over.
template <class Team>
TEAM_FN void tell_host(const Team&, std::uint32_t* word, std::uint32_t value) {
    *word = value;
}

DEEP_LL_TIER_END
