// choices.cpp: the host's own copy, before anything moves.
#include "ep/choices.hpp"

namespace deep_ll {

ChoiceCheck copy_choices(const Choices& choices, int num_tokens, const Shape& shape, std::int32_t* out) {
    for (int token = 0; token < num_tokens; ++token) {
        const std::int64_t first = static_cast<std::int64_t>(token) * shape.num_topk;
        for (int k = 0; k < shape.num_topk; ++k) {
            const BadChoice what = choices.judge(first, k, shape.num_experts);
            if (what != BadChoice::none) return {what, token, k, choices.at(first + k)};
        }
    }
    const std::int64_t count = static_cast<std::int64_t>(num_tokens) * shape.num_topk;
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(choices.at(i));
    return {BadChoice::none, 0, 0, 0};
}

}  // namespace deep_ll
