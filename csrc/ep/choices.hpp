// choices.hpp: a caller's top-k indices, checked and copied to this rank's memory.
#pragma once

#include "ep/shape.hpp"

namespace deep_ll {

enum class BadChoice : std::uint32_t { none = 0, out_of_range = 1, repeated = 2, not_dispatched = 3 };

struct ChoiceCheck {
    BadChoice what;
    std::int32_t token;
    std::int32_t choice;
    std::int64_t value;
};

// [num_tokens, num_topk] indices, 32 or 64 bits wide; -1 means no choice.
struct Choices {
    const void* indices;
    bool wide;
    const std::int32_t* dispatched;  // if not null: each must be what was dispatched there, or -1

    WORD_FN std::int64_t at(std::int64_t i) const {
        return wide ? static_cast<const std::int64_t*>(indices)[i]
                    : static_cast<const std::int32_t*>(indices)[i];
    }
    // Choice `k` of the token whose choices begin at `first`. The scan is quadratic in top-k, which is small.
    WORD_FN BadChoice judge(std::int64_t first, int k, int num_experts) const {
        const std::int64_t value = at(first + k);
        if (value < -1 || value >= num_experts) return BadChoice::out_of_range;
        if (value < 0) return BadChoice::none;
        for (int before = 0; before < k; ++before)
            if (at(first + before) == value) return BadChoice::repeated;
        const bool as_sent = dispatched == nullptr || value == dispatched[first + k];
        return as_sent ? BadChoice::none : BadChoice::not_dispatched;
    }
};

// Copies them to `out`, on a host. Stops at the first bad one.
ChoiceCheck copy_choices(const Choices& choices, int num_tokens, const Shape& shape, std::int32_t* out);

}  // namespace deep_ll
