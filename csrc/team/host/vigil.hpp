// vigil.hpp: how long a host waits, and for whom no longer.
#pragma once

#include <atomic>

#include "symm/doorbell.hpp"
#include "symm/link.hpp"
#include "team/host/host_team.hpp"
#include "team/members.hpp"

DEEP_LL_TIER_BEGIN

constexpr std::int64_t kNapNs = 100'000'000;  // between two looks at the deadline

TEAM_FN void leave_note(const PeerMap& peers, int rank, std::uint64_t offset, std::uint64_t word) {
    const std::uint64_t at = note_by(peers, peers.rank) + offset;
    if (peers.is_linked(rank)) return peers.link->signal(rank, at, word);
    std::atomic_ref<std::uint64_t> to(peers.at<Signal>(rank, at)->word);
    to.store(word, std::memory_order_seq_cst);  // before all that this rank does without the other
}

// Tells a rank that it is left out.
template <class Team>
TEAM_FN void tell_left_out(const Team&, const PeerMap& peers, int rank) {
    constexpr std::uint64_t kWord = offsetof(Note, evicted);
    if (peers.is_linked(rank)) return peers.link->leave_out(rank, {note_by(peers, peers.rank) + kWord, 1});
    leave_note(peers, rank, kWord, 1);
    ring(peers.at<HeapHeader>(rank, 0)->doorbell);
}

// From now on the group goes on without `rank`, which is told so.
template <class Team>
TEAM_FN void leave_out(const Team& team, const PeerMap& peers, int rank) {
    peers.mask[rank] = 1;
    tell_left_out(team, peers, rank);
}

// NOTE [who waits lives]: when a rank dies, some wait for it and the others for those. Each deadline began at
// about the same time, so the living would be taken for dead. Hence who waits shows it, by beats; a rank that
// has shown it in the last half of the deadline is given the same time once more.
class Vigil {
   public:
    Vigil(const PeerMap& peers, std::int64_t timeout_ns)
        : peers_(peers), timeout_ns_(timeout_ns), start_ns_(now_ns()), beaten_ns_(start_ns_) {}

    // With nobody to leave out: it is time to give up.
    bool is_over() const {
        return timeout_ns_ != 0 && !peers_.can_shrink() && now_ns() - start_ns_ >= timeout_ns_;
    }

    // How long to sleep before there is something to do.
    std::int64_t nap_ns() const {
        if (timeout_ns_ == 0) return kNapNs;
        const std::int64_t next =
            peers_.can_shrink() ? beaten_ns_ + timeout_ns_ / kBeats : start_ns_ + timeout_ns_;
        const std::int64_t left = next - now_ns();
        return left < 0 ? 0 : left < kNapNs ? left : kNapNs;
    }

    // After a nap. One that took much longer was none: this rank did not run, and others need not be late.
    void woke(std::int64_t since_ns, std::int64_t asked_ns) {
        if (!peers_.can_shrink()) return;
        const std::int64_t excess_ns = now_ns() - since_ns - asked_ns;
        if (excess_ns < timeout_ns_ / kBeats || excess_ns < kNapNs / 2) return;
        start_ns_ += excess_ns;
        if (looked_ns_ != 0) looked_ns_ += excess_ns;
    }

    // Shows that this rank lives, and leaves out those who are missing for too long.
    template <class Team, class Waiting>
    void look(const Team& team, Waiting& waiting) {
        if (timeout_ns_ == 0 || !peers_.can_shrink()) return;
        const std::int64_t now = now_ns();
        if (now - beaten_ns_ >= timeout_ns_ / kBeats) beat(now);
        const bool is_first = looked_ns_ == 0;
        if (now - (is_first ? start_ns_ : looked_ns_) < timeout_ns_ / 2) return;
        looked_ns_ = now;
        waiting.each_missing([&](int rank) {
            const std::uint64_t beat = observe(team, peers_, note_by(peers_, rank) + offsetof(Note, beat));
            const bool is_silent = !is_first && beat == beats_[rank];
            beats_[rank] = beat;
            if (now - start_ns_ >= (is_silent ? 1 : 2) * timeout_ns_) leave_out(team, peers_, rank);
        });
    }

   private:
    static constexpr std::int64_t kBeats = 8;  // within the deadline

    void beat(std::int64_t now) {
        beaten_ns_ = now;
        peers_.each([&](int peer) {
            if (peer != peers_.rank)
                leave_note(peers_, peer, offsetof(Note, beat), static_cast<std::uint64_t>(now));
        });
    }

    const PeerMap& peers_;
    const std::int64_t timeout_ns_;
    std::int64_t start_ns_;
    std::int64_t beaten_ns_;
    std::int64_t looked_ns_ = 0;      // 0: never
    std::uint64_t beats_[kMaxRanks];  // of the missing, at the last look
};

DEEP_LL_TIER_END
