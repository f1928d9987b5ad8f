"""Arithmetic that is a little wrong, and counts."""

from .kinds import BYTES, DISPATCH, QUANTIZE, REARRANGE, REDUCE, SIGNAL, TEAM, COPY, Mutant, one

NUMBERS = {
    "cast_truncates": one(
        QUANTIZE, "(float_bits(__fdiv_rn(most, kE4m3Max)) + 0x7fffffu) >> 23",
        "float_bits(__fdiv_rn(most, kE4m3Max)) >> 23", "rounded", BYTES,
    ),
    "scale_is_rounded_down": one(
        QUANTIZE, "const float inverse = finite ? __fdiv_rn(", "const float inverse = finite ? __fdiv_rz(",
        "few", BYTES,
    ),
    "sums_are_rounded_twice": one(
        REDUCE, "__fmaf_rn(weight, low_bf16(x[i].w[c]), sum[2 * c])",
        "__fadd_rn(__fmul_rn(weight, low_bf16(x[i].w[c])), sum[2 * c])", "few", BYTES,
    ),
    "sums_are_truncated": one(
        REDUCE, "cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32", "few", BYTES
    ),
    "sums_go_backwards": one(
        REDUCE, "for (int first = 0; first < n; first += kSumBatch) add_rows",
        "for (int first = (n - 1) / kSumBatch * kSumBatch; first >= 0; first -= kSumBatch) add_rows",
        "top_16", BYTES,
    ),
    "tiny_groups_are_scaled_up": one(
        QUANTIZE, "amax < kSmallestAmax ? kSmallestAmax : amax", "amax", "tiny", BYTES
    ),
    "no_infinities": one(QUANTIZE, "return scale.finite ?", "return true ?", "rounded", BYTES),
    "padding_is_left": one(
        QUANTIZE, "if (first == 0) team.lanes(-used & 15", "if (first < 0) team.lanes(-used & 15",
        "padded", "Fault",
    ),
    "teams_take_the_same_items": one(
        TEAM, "for (int i = index_; i < n; i += count_) f(i);",
        "for (int i = index_ / 2 * 2; i < n; i += count_) f(i);", "many few", "Race|differ",
    ),
    "teams_stride_is_short": one(
        TEAM, "for (int i = index_; i < n; i += count_) f(i);",
        "for (int i = index_; i < n; i += count_ - (count_ > 1 ? 1 : 0)) f(i);", "many few", "Race|differ",
    ),
    "blocks_stride_is_long": one(
        TEAM, "for (; next < end; next += count_)", "for (; next < end; next += count_ + 1)", "few", "Race|differ|Fault",
    ),
    "runs_count_one_less": one(
        REARRANGE, "for (int r = 0; r < runs; ++r)", "for (int r = 0; r < runs - 1; ++r)", "many hot", "Race|differ|Fault",
    ),
}
