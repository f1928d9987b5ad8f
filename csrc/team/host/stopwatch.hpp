// stopwatch.hpp: how long a wait of a host was for each rank, by what they told of when they published.
#pragma once

#include <atomic>

#include "symm/doorbell.hpp"
#include "symm/link.hpp"
#include "team/host/watch.hpp"

DEEP_LL_TIER_BEGIN

TEAM_FN void tell_time(const PeerMap& peers, int peer, std::uint64_t signal, std::uint32_t told) {
    const std::uint64_t at = told_of(signal);
    if (at == 0) return;
    std::atomic_ref<std::uint32_t>(*peers.at<std::uint32_t>(peer, at)).store(told, std::memory_order_relaxed);
}

// Of one wait. Whoever is missing when it starts is waited for, until it came or the wait ended.
template <class SignalOf>
class Stopwatch {
   public:
    Stopwatch(const PeerMap& peers, const Awaited& awaited, SignalOf signal_of, const WaitPolicy& policy)
        : peers_(peers), awaited_(awaited), signal_of_(signal_of), policy_(policy) {}

    void start() {
        if (!is_wanted()) return;
        start_ns_ = now_ns();
        for (int rank = 0; rank < peers_.size; ++rank)
            if (!peers_.is_masked(rank) && !has_come(rank)) missing_[rank / 64] |= bit(rank);
        if (policy_.watch != nullptr) policy_.watch->begin_wait(as_seen(), awaited_, start_ns_);
    }

    void stop() {
        if (policy_.watch != nullptr) policy_.watch->end_wait(awaited_.phase);
        if (start_ns_ == 0) return;
        const std::int64_t end_ns = now_ns();
        for (int rank = 0; rank < peers_.size; ++rank) {
            if ((missing_[rank / 64] & bit(rank)) == 0) continue;
            const std::int64_t cost_ns = cost(rank, end_ns - start_ns_);
            if (policy_.costs != nullptr) policy_.costs[rank] += cost_ns;
            if (policy_.watch != nullptr) policy_.watch->waited(awaited_.phase, rank, start_ns_, cost_ns);
        }
    }

   private:
    static std::uint64_t bit(int rank) { return std::uint64_t{1} << rank % 64; }
    bool is_wanted() const { return policy_.watch != nullptr || policy_.costs != nullptr; }
    std::uint64_t& word(int rank) const { return peers_.template mine<Signal>(signal_of_(rank))->word; }
    bool has_come(int rank) const {
        const std::uint64_t seen = std::atomic_ref<std::uint64_t>(word(rank)).load(std::memory_order_relaxed);
        return reached(seen, awaited_.epoch);
    }
    Watch::Words as_seen() const {
        const std::uint64_t stride = peers_.size > 1 ? signal_of_(1) - signal_of_(0) : 0;
        return {&word(0), stride, peers_.mask};
    }

    // What a peer says is believed within the wait. One that was 9 minutes or longer is too long for its
    // words.
    std::int64_t cost(int rank, std::int64_t whole_ns) const {
        if (!has_come(rank) || whole_ns >> kToldShift > INT32_MAX) return whole_ns;
        std::int64_t cost_ns = whole_ns;
        const std::uint64_t at = told_of(signal_of_(rank));
        if (peers_.is_linked(rank)) {
            const std::int64_t landed_ns = peers_.link->landed_ns(rank);
            if (landed_ns != 0) cost_ns = landed_ns - start_ns_;
        } else if (at != 0) {
            std::atomic_ref<std::uint32_t> told(*peers_.template mine<std::uint32_t>(at));
            const auto since =
                told.load(std::memory_order_relaxed) - static_cast<std::uint32_t>(start_ns_ >> kToldShift);
            cost_ns = static_cast<std::int64_t>(static_cast<std::int32_t>(since)) * (1 << kToldShift);
        }
        return cost_ns < 0 ? 0 : cost_ns < whole_ns ? cost_ns : whole_ns;
    }

    const PeerMap& peers_;
    const Awaited awaited_;
    const SignalOf signal_of_;
    const WaitPolicy& policy_;
    std::int64_t start_ns_ = 0;  // 0: all had come, or nobody asks
    std::uint64_t missing_[kMaxRanks / 64]{};
};

DEEP_LL_TIER_END
