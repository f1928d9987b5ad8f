// choices.hpp: a caller's top-k indices, checked and copied before anything moves.
#pragma once

#include "ep/shape.hpp"

namespace deep_ll {

enum class BadChoice : int { none = 0, out_of_range = 1, repeated = 2, not_dispatched = 3 };

struct ChoiceCheck {
    BadChoice what;
    int token;
    int choice;
    std::int64_t value;
};

// Copies [num_tokens, num_topk] indices (32 or 64 bits wide) to `out`; -1 means no choice. Stops at the first
// bad one. With `dispatched`, each must be what was dispatched there, or -1.
ChoiceCheck copy_choices(const void* indices,
                         bool wide,
                         int num_tokens,
                         const Shape& shape,
                         std::int32_t* out,
                         const std::int32_t* dispatched);

}  // namespace deep_ll
