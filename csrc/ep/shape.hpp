// shape.hpp: the numbers of one exchange. Checked in Python before they come here.
#pragma once

#include "core/layout.hpp"
#include "core/numeric.hpp"

namespace deep_ll {

constexpr int kMaxTopk = 32;
constexpr int kMaxExperts = 8192;
constexpr int kMaxTokens = 4096;  // per rank; counts travel as 16 bits

struct Shape {
    int num_ranks = 0;
    int rank = 0;
    int num_experts = 0;
    int max_tokens = 0;  // per rank
    int hidden = 0;
    int num_topk = 0;
    Format format = Format::bf16;
    // These follow from the others. The last ranks may have fewer experts than the others, or none.
    int experts_per_rank = 0;
    int num_local_experts = 0;  // of this rank
    std::uint64_t reciprocal = 0;

    Shape() = default;
    Shape(int ranks, int this_rank, int experts, int tokens, int channels, int topk, Format wire)
        : num_ranks(ranks),
          rank(this_rank),
          num_experts(experts),
          max_tokens(tokens),
          hidden(channels),
          num_topk(topk),
          format(wire),
          experts_per_rank((experts + ranks - 1) / ranks),
          num_local_experts(between(0, experts - this_rank * experts_per_rank, experts_per_rank)),
          reciprocal((std::uint64_t{1} << 32) / static_cast<std::uint64_t>(experts_per_rank) + 1) {}

    WORD_FN int num_local() const { return num_local_experts; }
    // Experts are few and a division is slow: multiply by a reciprocal that is exact below 2^32 /
    // experts_per_rank.
    WORD_FN int owner(int expert) const {
        return static_cast<int>(static_cast<std::uint64_t>(expert) * reciprocal >> 32);
    }
    WORD_FN int local(int expert) const { return expert - owner(expert) * experts_per_rank; }
    WORD_FN int first_local() const { return rank * experts_per_rank; }
    WORD_FN std::uint64_t max_rows() const {  // of one expert
        return static_cast<std::uint64_t>(num_ranks) * static_cast<std::uint64_t>(max_tokens);
    }
    // Of a rank with as many experts as any: heaps are laid out alike.
    WORD_FN std::uint64_t num_rows() const {
        return max_rows() * static_cast<std::uint64_t>(experts_per_rank);
    }
    // That one rank can make.
    WORD_FN std::uint64_t num_choices() const {
        return static_cast<std::uint64_t>(max_tokens) * static_cast<std::uint64_t>(num_topk);
    }
    // Row `row` of local expert `local`, counted over all of them.
    WORD_FN std::uint64_t row_index(int local_expert, std::uint64_t row) const {
        return static_cast<std::uint64_t>(local_expert) * max_rows() + row;
    }

    WORD_FN bool is_fp8() const { return format != Format::bf16; }
    WORD_FN int num_groups() const { return is_fp8() ? hidden / kGroup : 0; }
    WORD_FN int scale_words() const {
        return format == Format::fp8_ue8m0 ? (num_groups() + 3) / 4 : num_groups();
    }
    WORD_FN std::uint64_t bf16_bytes() const { return static_cast<std::uint64_t>(hidden) * 2; }
    WORD_FN std::uint64_t row_bytes() const { return is_fp8() ? bf16_bytes() / 2 : bf16_bytes(); }

   private:
    static int between(int least, int value, int most) {
        return value < least ? least : value > most ? most : value;
    }
};

// Where a dispatched row came from; the combine sends it back there.
struct Origin {
    std::uint16_t source;    // rank
    std::uint16_t dispatch;  // low half of its epoch: a place that was not written shows an older one
    std::uint16_t token;
    std::uint16_t choice;  // which of the token's choices

    WORD_FN bool is_inside(const Shape& shape) const {
        return source < shape.num_ranks && token < shape.max_tokens && choice < shape.num_topk;
    }
    WORD_FN std::uint64_t word() const {
        return static_cast<std::uint64_t>(choice) << 48 | static_cast<std::uint64_t>(token) << 32 |
               static_cast<std::uint64_t>(dispatch) << 16 | source;
    }
};

// What travels beside a row: its scales, then its origin.
struct Label {
    WORD_FN static std::uint64_t origin_offset(const Shape& shape) {
        return round_up(static_cast<std::uint64_t>(shape.scale_words()) * 4, 8);
    }
    WORD_FN static std::uint64_t bytes(const Shape& shape) {
        const std::uint64_t used = origin_offset(shape) + sizeof(Origin);
        return round_up(used, used <= 16 ? 16 : kLine);
    }
};

// What a team has in memory of its own before it goes to a peer behind a link: a label, then a row.
WORD_FN std::uint64_t staged_row(const Shape& shape) {
    return round_up(Label::bytes(shape), kLine);
}
WORD_FN std::uint64_t staged_bytes(const Shape& shape) {
    return staged_row(shape) + shape.row_bytes();
}

}  // namespace deep_ll
