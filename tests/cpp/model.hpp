// model.hpp: what an exchange must give, worked out plainly, one value at a time, without a word of csrc/.
#pragma once

#include <cstdint>
#include <vector>

namespace model {

enum class Format : std::uint32_t { bf16, fp8, fp8_rounded, fp8_ue8m0 };

struct Sizes {
    int ranks;
    int experts;
    int max_tokens;
    int hidden;
    int topk;
    Format format;

    int row_bytes() const { return format == Format::bf16 ? hidden * 2 : hidden; }
    int scale_words() const {
        if (format == Format::bf16) return 0;
        return format == Format::fp8_ue8m0 ? (hidden / 128 + 3) / 4 : hidden / 128;
    }
};

// What one rank sends in one round.
struct Tokens {
    int count;
    std::vector<std::uint16_t> x;       // bf16 [count, hidden]
    std::vector<std::int32_t> experts;  // [count, topk], -1: no choice
    std::vector<float> weights;         // [count, topk]
    std::vector<std::uint8_t> rows;     // as they travel: [count, row_bytes]
    std::vector<std::uint32_t> scales;  // [count, scale_words]
};

// One row that an expert receives.
struct Arrival {
    int source;
    int token;
};

struct Round {
    Sizes sizes;
    std::vector<Tokens> tokens;                  // by rank
    std::vector<std::vector<Arrival>> arrivals;  // by expert, in the order of their rows
};

// One combine: which round it answers, and whether its rows are read in place.
struct Answer {
    int round;
    bool pulled;
    std::uint64_t key;  // different answers of one round have different rows
};

// Well mixed bits of up to three numbers.
std::uint64_t mix(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0);

Round make_round(std::uint64_t seed, int ranks);

// bf16 [hidden]: what `expert` answers to a row.
std::vector<std::uint16_t> output(const Round& round, const Answer& answer, int expert, Arrival row);

// The choices of a rank's tokens that are added up: some have become -1 since the dispatch.
std::vector<std::int32_t> kept_choices(const Round& round, const Answer& answer, int rank);

// bf16 [count, hidden]: the sum that a rank must get, of these choices.
std::vector<std::uint16_t> combined(const Round& round,
                                    const Answer& answer,
                                    int rank,
                                    const std::vector<std::int32_t>& choices);

}  // namespace model
