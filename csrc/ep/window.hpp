// window.hpp: every byte of the symmetric heap has its owner here. Size and offsets come from the same walk.
//
// The heap is cut into parts that do not depend on a call's shape, so a call of another shape never touches
// what belongs to a round that is still being read.
#pragma once

#include "ep/shape.hpp"
#include "symm/heap.hpp"
#include "team/signal.hpp"

namespace deep_ll {

// What a source says of its round before any row moves; the reader compares it with its own.
struct Greeting {
    std::int32_t num_experts;
    std::int32_t max_tokens;
    std::int32_t hidden;
    std::int32_t num_topk;
    std::uint32_t format;
    std::uint32_t recv_slot;
};

// All words of one source at one reader. One writer.
struct alignas(128) Desk {
    Signal counts;       // epoch of dispatch: greeting and counts are there
    Signal rows;         // epoch of dispatch: all rows are there
    Signal combined[2];  // by parity; epoch of combine: rows may be read. value: dispatch << 3 | slot << 2 |
                         // LogFMT << 1 | pulled
    Signal consumed;     // epoch of combine: the source has read all rows of it
    Signal granted;      // epoch of dispatch: the source's grants are there (shrink.hpp)
    Signal met;          // how often the source has met the others
    Greeting greeting[2];
    std::uint32_t told[kNumTold];  // when each of the first six was published: told_of()
};
static_assert(sizeof(Desk) == kDeskBytes && offsetof(Desk, told) == kToldOffset);

// The parts of the heap.
struct Window {
    Object desks;    // [ranks] Desk
    Object counts;   // 2 slots of [ranks][stride] u16: rows that a source sends to each expert
    Object notes;    // [ranks] Note. This and the next two: where ranks may be left out
    Object views;    // 2 slots of [ranks][stride] bytes: whom a source has left out
    Object grants;   // 2 slots of [experts] u32: the first row of this rank's tokens, by each expert's owner
    Object recv;     // 2 slots, laid out by RecvLayout
    Object combine;  // 2 slots: rows that come back, or the experts' outputs that peers read in place
    Object mail;     // in the place of notes, [ranks] Mail: what a source behind a GPU's network has sent
    std::uint64_t counts_stride;  // bytes of one source's counts
    std::uint64_t view_stride;    // bytes of one source's view
    std::uint64_t bytes;

    // The whole heap of `bytes`, cut up; experts are bounded by its size.
    static Window carve(std::uint64_t bytes, int num_ranks);
    // The smallest heap that holds `shape` in any format and with any top-k.
    static std::uint64_t bytes_for(const Shape& shape);
    // What a slot of `combine` must have where peers are behind a GPU's network: outgoing() is its other
    // half.
    static std::uint64_t slot_bytes_with_network(const Shape& shape);

    WORD_FN int max_experts() const { return static_cast<int>(counts_stride / 2); }
    WORD_FN std::uint64_t desk(int source) const {
        return desks.offset + static_cast<std::uint64_t>(source) * sizeof(Desk);
    }
    WORD_FN std::uint64_t counts_of(std::uint32_t epoch, int source) const {
        return counts.slot(epoch) + static_cast<std::uint64_t>(source) * counts_stride;
    }
    WORD_FN std::uint64_t view_of(std::uint32_t epoch, int source) const {
        return views.slot(epoch) + static_cast<std::uint64_t>(source) * view_stride;
    }
    WORD_FN std::uint64_t grant(std::uint32_t epoch, int expert) const {
        return grants.slot(epoch) + static_cast<std::uint64_t>(expert) * 4;
    }
    // Row of token `token`'s choice `choice`, come back to its source.
    WORD_FN std::uint64_t returned(const Shape& shape, std::uint32_t slot, int choice, int token) const {
        const auto row = static_cast<std::uint64_t>(choice) * static_cast<std::uint64_t>(shape.max_tokens);
        return combine.slot(slot) + (row + static_cast<std::uint64_t>(token)) * shape.bf16_bytes();
    }
    // What goes to peers behind a GPU's network lies in this rank's own memory until it has arrived. Rows of
    // a dispatch: in the other half of a slot of `combine`, which is only needed whole where outputs are read
    // in place, and with such peers nobody does.
    WORD_FN std::uint64_t outgoing(std::uint32_t slot) const {
        return combine.slot(slot) + combine.slot_bytes / 2 / kLine * kLine;
    }
    // The experts' outputs: behind the heap, as large as two slots of `combine`.
    WORD_FN std::uint64_t outputs(std::uint32_t slot) const {
        return round_up(bytes, kPage) + slot % 2 * combine.slot_bytes;
    }
    // Output row of an expert, where its owner left it.
    WORD_FN std::uint64_t output(const Shape& shape,
                                 std::uint32_t slot,
                                 int local_expert,
                                 std::uint64_t row) const {
        return combine.slot(slot) + shape.row_index(local_expert, row) * shape.bf16_bytes();
    }
};

// Inside a slot of `recv`. Offsets from the slot's start.
struct RecvLayout {
    std::uint64_t x;         // [local experts, max_rows, row bytes]
    std::uint64_t labels;    // [local experts, max_rows] Label
    std::uint64_t scales;    // [local experts, scale words, max_rows] u32
    std::uint64_t src_info;  // [local experts, max_rows] i32
    std::uint64_t bytes;

    WORD_FN static RecvLayout carve(const Shape& shape) {
        Arena arena;
        const std::uint64_t rows = shape.num_rows();
        RecvLayout at{};
        at.x = arena.take(rows * shape.row_bytes(), kLine);
        at.labels = arena.take(rows * Label::bytes(shape), kLine);
        at.scales = arena.take(rows * static_cast<std::uint64_t>(shape.scale_words()) * 4, kLine);
        at.src_info = arena.take(rows * 4, kLine);
        at.bytes = round_up(arena.used(), kLine);
        return at;
    }
};

// Rows on their way to peers behind a GPU's network, those of an expert side by side.
struct OutgoingLayout {
    std::uint64_t x;       // [max_tokens * num_topk, row bytes]
    std::uint64_t labels;  // [max_tokens * num_topk] Label
    std::uint64_t bytes;

    WORD_FN static OutgoingLayout carve(const Shape& shape) {
        Arena arena;
        OutgoingLayout at{};
        at.x = arena.take(shape.num_choices() * shape.row_bytes(), kLine);
        at.labels = arena.take(shape.num_choices() * Label::bytes(shape), kLine);
        at.bytes = round_up(arena.used(), kLine);
        return at;
    }
};

constexpr std::uint32_t kNoRow = ~0u;

// This rank's own memory of one round: what it sent where, needed when the answers come back. Two take turns.
struct Ledger {
    std::int32_t* experts;    // [max_tokens, num_topk], -1: no choice
    std::int32_t* ordinals;   // [max_tokens, num_topk], which of this rank's rows for its expert each is
    std::uint32_t* counts;    // [num_experts] rows sent to each expert
    std::uint32_t* base;      // [num_experts] first of them; kNoRow: their owner is left out
    std::uint32_t* received;  // [num_local]
    std::uint32_t* waiting;   // [num_experts] first row of each in OutgoingLayout

    // Rows for this expert were sent.
    TEAM_FN bool serves(int expert) const { return base[expert] != kNoRow; }
    // Which row of `expert`, its choice, entry `i` became.
    TEAM_FN std::uint64_t row(int i, int expert) const {
        return base[expert] + static_cast<std::uint32_t>(ordinals[i]);
    }

    WORD_FN static std::uint64_t bytes(const Shape& shape) {
        return (2 * shape.num_choices() + 4 * static_cast<std::uint64_t>(shape.num_experts)) * 4;
    }
    WORD_FN static Ledger at(std::uint64_t base_address, const Shape& shape) {
        auto* words = reinterpret_cast<std::int32_t*>(base_address);
        auto* counts = reinterpret_cast<std::uint32_t*>(words + 2 * shape.num_choices());
        const int num = shape.num_experts;
        return {words, words + shape.num_choices(), counts, counts + num, counts + 2 * num, counts + 3 * num};
    }
};

}  // namespace deep_ll
