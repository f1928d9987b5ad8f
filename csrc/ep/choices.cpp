// choices.cpp: the scan is quadratic in top-k, which is small.
#include "ep/choices.hpp"

#include <algorithm>

namespace deep_ll {
namespace {

std::int64_t index_at(const void* indices, bool wide, std::int64_t i) {
    return wide ? static_cast<const std::int64_t*>(indices)[i] : static_cast<const std::int32_t*>(indices)[i];
}

BadChoice judge(std::int64_t value, const std::int32_t* before, int choice, int num_experts) {
    if (value < -1 || value >= num_experts) return BadChoice::out_of_range;
    if (value < 0) return BadChoice::none;
    const bool again =
        std::find(before, before + choice, static_cast<std::int32_t>(value)) != before + choice;
    return again ? BadChoice::repeated : BadChoice::none;
}

}  // namespace

ChoiceCheck copy_choices(const void* indices,
                         bool wide,
                         int num_tokens,
                         const Shape& shape,
                         std::int32_t* out,
                         const std::int32_t* dispatched) {
    for (int token = 0; token < num_tokens; ++token) {
        const std::int64_t first = static_cast<std::int64_t>(token) * shape.num_topk;
        for (int k = 0; k < shape.num_topk; ++k) {
            const std::int64_t value = index_at(indices, wide, first + k);
            BadChoice what = judge(value, out + first, k, shape.num_experts);
            if (what == BadChoice::none && dispatched != nullptr && value >= 0 &&
                value != dispatched[first + k])
                what = BadChoice::not_dispatched;
            if (what != BadChoice::none) return {what, token, k, value};
            out[first + k] = static_cast<std::int32_t>(value);
        }
    }
    return {BadChoice::none, 0, 0, 0};
}

}  // namespace deep_ll
