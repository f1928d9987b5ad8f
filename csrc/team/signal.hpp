// signal.hpp: the words by which ranks order each other's memory. docs/memory_model.md has a row for each
// use; the verbs that write and await them are in host/signal.hpp and gpu/signal.cuh.
//
// A signal is one word in its reader's heap, with one writer: `epoch << 32 | value`. Epochs only grow (modulo
// 2^32), so nothing is ever cleared and a stale word is simply an older epoch.
#pragma once

#include "symm/peers.hpp"

namespace deep_ll {

class Watch;

struct Signal {
    std::uint64_t word;
};

WORD_FN std::uint64_t signal_word(std::uint32_t epoch, std::uint32_t value) {
    return static_cast<std::uint64_t>(epoch) << 32 | value;
}
WORD_FN std::uint32_t epoch_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word >> 32);
}
WORD_FN std::uint32_t value_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word);
}
WORD_FN bool reached(std::uint64_t word, std::uint32_t epoch) {
    return static_cast<std::int32_t>(epoch_of(word) - epoch) >= 0;  // right across the wrap of 2^32
}

// The signals of one writer lie at the start of a desk. A host leaves at its end when it published the first
// of them, in units of 256 ns, for a reader that measures its wait: who sleeps does not see who comes when.
constexpr std::uint64_t kDeskBytes = 128;
constexpr std::uint64_t kNumTold = 6;
constexpr std::uint64_t kToldOffset = kDeskBytes - kNumTold * sizeof(std::uint32_t);
constexpr int kToldShift = 8;

// Where in a heap that is for the signal at this offset; 0: nowhere.
WORD_FN std::uint64_t told_of(std::uint64_t signal) {
    const std::uint64_t desk = signal / kDeskBytes * kDeskBytes;
    const std::uint64_t index = (signal - desk) / sizeof(Signal);
    return index < kNumTold ? desk + kToldOffset + index * sizeof(std::uint32_t) : 0;
}

// What a rank tells another of the two of them, outside of any call. In the reader's heap, one writer.
struct Note {
    Signal evicted;  // not 0: the writer has left the reader out
    Signal beat;     // changes while the writer itself waits for others
};

// A network between GPUs keeps no order but that of a message and the signal that it ends with. So what a
// peer behind it is sent is counted there, in a box for each sort of data and parity of its epoch: at most
// two rounds are under way. A message adds 1; whoever tells the peer of n messages adds the new epoch less n,
// in either order. The box reaches the epoch when all of them have landed: until then the low half has
// borrowed from it.
enum class Parcel : std::int32_t { none = -1, counts = 0, rows = 1, outputs = 2 };

struct Box {
    Parcel parcel = Parcel::none;
    std::uint32_t epoch = 0;

    WORD_FN bool is_none() const { return parcel == Parcel::none; }
    WORD_FN std::uint64_t offset() const {
        return (static_cast<std::uint64_t>(parcel) * 2 + epoch % 2) * sizeof(Signal);
    }
};

// All boxes of one writer.
struct Mail {
    Signal boxes[8];
};

// What is published: `signal` is its offset in the reader's heap.
struct Word {
    std::uint64_t signal;
    std::uint32_t epoch;
    std::uint32_t value;
    Parcel parcel = Parcel::none;  // that it tells of

    WORD_FN Box box() const { return {parcel, epoch}; }
};

// An epoch that is waited for. A writer can be so far ahead of it and no further, by the protocol.
struct Awaited {
    std::uint32_t phase;  // the waiter's word for it
    std::uint32_t epoch;
    std::uint32_t most_ahead;
    Parcel parcel = Parcel::none;  // that it tells of

    TEAM_FN Box box() const { return {parcel, epoch}; }
    TEAM_FN bool is_beyond(std::uint64_t word) const {
        return reached(word, epoch) && epoch_of(word) - epoch > most_ahead;
    }
};

// beyond: all have come, but an epoch is one that cannot be.
enum class WaitOutcome : std::uint32_t {
    done = 0,
    timeout = 1,
    interrupted = 2,
    dead = 3,
    evicted = 4,
    beyond = 5
};

// How a wait ended, filled by the team that gave it up.
struct WaitReport {
    WaitOutcome outcome;
    std::uint32_t phase;  // the waiter's word for what it waited for
    std::uint32_t expected_epoch;
    std::uint32_t last_epoch;  // that could have been found
    std::uint32_t num_missing;
    std::uint32_t missing[kMaxRanks];     // the ranks that did not publish, or nonsense; or left this one out
    std::uint32_t seen_epoch[kMaxRanks];  // and what was found of each

    TEAM_FN void expect(const Awaited& awaited) {
        phase = awaited.phase;
        expected_epoch = awaited.epoch;
        last_epoch = awaited.epoch + awaited.most_ahead;
        num_missing = 0;
    }
    TEAM_FN void note(int rank, std::uint64_t word, const Awaited& awaited) {
        if (reached(word, awaited.epoch) && !awaited.is_beyond(word)) return;
        add(rank, epoch_of(word));
    }
    TEAM_FN void add(int rank, std::uint32_t epoch) {
        missing[num_missing] = static_cast<std::uint32_t>(rank);
        seen_epoch[num_missing++] = epoch;
    }
};

// How to wait. What only hosts know of is ignored on a GPU.
struct WaitPolicy {
    std::int64_t timeout_ns;  // of each wait; 0: none
    int num_pauses;
    int num_yields;
    bool (*interrupted)();          // asked about ten times a second, may end the wait
    std::int64_t* costs = nullptr;  // [ranks] grows by the nanoseconds that each was waited for; null: nobody
                                    // asks
    Watch* watch = nullptr;         // host/watch.hpp
};

}  // namespace deep_ll
