// link.hpp: how a rank reaches peers whose memory it cannot map. No transport is named here. Host only.
#pragma once

#include <cstdint>
#include <span>

namespace deep_ll {

// A word for a peer, and where in its heap it goes: a multiple of 8.
struct LinkWord {
    std::uint64_t offset;
    std::uint64_t word;
};

// What went to one peer, and what came from it.
struct LinkStats {
    std::uint64_t puts;
    std::uint64_t signals;
    std::uint64_t bytes_sent;  // put by the caller
    std::uint64_t messages_sent;
    std::uint64_t bytes_landed;
    std::uint64_t messages_landed;
    std::uint64_t held_back;  // messages whose words wait, right now, for messages before them
    std::uint64_t dropped;    // bad messages in its name
};

// How long is waited for a peer that takes nothing while much is on its way to it.
struct Patience {
    std::int64_t timeout_ns;  // 0: for ever
    bool (*interrupted)();    // asked now and then; true: no longer
};

// Any thread may call any of these. Nothing is put below the heap's header, or past its end.
class Link {
   public:
    virtual ~Link() = default;

    // `bytes` to `offset` of the peer's heap. `from` may be changed when this returns. Puts are in no order
    // among each other; they have landed when a later signal is seen. To a dead peer: nothing. Waits while
    // too much is on its way; a peer that takes nothing for too long counts as dead.
    virtual void put(int peer, std::uint64_t offset, const void* from, std::uint64_t bytes) = 0;

    // The words are stored there (release) once everything that was put to that peer before has landed, after
    // the words of earlier signals and one after the other; then the peer's doorbell is rung, once.
    virtual void signal(int peer, std::span<const LinkWord> words) = 0;
    void signal(int peer, std::uint64_t offset, std::uint64_t word) {
        const LinkWord one{offset, word};
        signal(peer, std::span(&one, 1));
    }

    // For all puts and signals from now on.
    virtual void be_patient(const Patience& patience) = 0;

    // To be called again and again inside waits: lets arrivals land. True: something happened.
    virtual bool progress() = 0;

    // To be called before a sleep on the doorbell: from now on the link's own thread looks after arrivals,
    // at once and not only when it sees that nobody else does.
    virtual void rest() = 0;

    // Nothing of the peer lands any more, and nothing goes to it, but for this last word, if that can leave
    // without waiting.
    virtual void leave_out(int peer, const LinkWord& last) = 0;

    // The opposite.
    virtual void take_back(int peer) = 0;

    // The peer cannot be reached any more: its process ended, it closed its link, or it is stuck. Words it
    // sent before may still have landed, so look at them first.
    virtual bool dead(int peer) const = 0;

    // When the last words of the peer were stored here (CLOCK_MONOTONIC); 0: not known.
    virtual std::int64_t landed_ns(int peer) const = 0;
};

}  // namespace deep_ll
