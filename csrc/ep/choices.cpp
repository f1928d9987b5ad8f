// choices.cpp: the scan is quadratic in top-k, which is small.
#include "ep/choices.hpp"

namespace deep_ll {
namespace {

std::int64_t index_at(const void* indices, bool wide, std::int64_t i) {
    return wide ? static_cast<const std::int64_t*>(indices)[i] : static_cast<const std::int32_t*>(indices)[i];
}

// One token's choices.
struct Choices {
    const void* indices;
    bool wide;
    std::int64_t first;

    std::int64_t at(int k) const { return index_at(indices, wide, first + k); }
};

BadChoice judge(const Choices& choices, int k, int num_experts) {
    const std::int64_t value = choices.at(k);
    if (value < -1 || value >= num_experts) return BadChoice::out_of_range;
    if (value < 0) return BadChoice::none;
    for (int before = 0; before < k; ++before)
        if (choices.at(before) == value) return BadChoice::repeated;
    return BadChoice::none;
}

ChoiceCheck check_token(const Choices& choices,
                        int token,
                        const Shape& shape,
                        const std::int32_t* dispatched) {
    for (int k = 0; k < shape.num_topk; ++k) {
        const std::int64_t value = choices.at(k);
        BadChoice what = judge(choices, k, shape.num_experts);
        if (what == BadChoice::none && dispatched != nullptr && value >= 0 &&
            value != dispatched[choices.first + k])
            what = BadChoice::not_dispatched;
        if (what != BadChoice::none) return {what, token, k, value};
    }
    return {BadChoice::none, 0, 0, 0};
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
        const ChoiceCheck check = check_token({indices, wide, first}, token, shape, dispatched);
        if (check.what != BadChoice::none) return check;
    }
    const std::int64_t count = static_cast<std::int64_t>(num_tokens) * shape.num_topk;
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(index_at(indices, wide, i));
    return {BadChoice::none, 0, 0, 0};
}

}  // namespace deep_ll
