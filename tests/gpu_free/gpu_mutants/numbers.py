"""Arithmetic that is a little wrong, and counts."""

from .kinds import BYTES, FAULT, LOGFMT, QUANTIZE, REARRANGE, REDUCE, TEAM, one

SHARE = "for (int i = index_; i < n; i += count_) f(i);"
BATCHES = "int first = 0; first < n; first += kSumBatch"
ANY = "Race|Fault|differ"

NUMBERS = {
    "scale_is_truncated": one(QUANTIZE, "+ 0x7fffffu", "+ 0u", "rounded", BYTES),
    "scale_is_rounded_down": one(
        QUANTIZE, "__fdiv_rn(most, kE4m3Max)", "__fdiv_rz(most, kE4m3Max)", "few", BYTES
    ),
    "tiny_groups_are_scaled_up": one(
        QUANTIZE, "amax < kSmallestAmax ? kSmallestAmax : amax", "amax", "tiny", BYTES
    ),
    "no_infinities": one(
        QUANTIZE, "? uint2{pairs[0]", "|| true ? uint2{pairs[0]", "rounded", BYTES
    ),
    "padding_is_left": one(
        QUANTIZE, "if (first == 0) team.lanes(", "if (first < 0) team.lanes(", "padded", FAULT
    ),
    "log_codes_of_eight_bits": one(LOGFMT, "& 0x1ffu", "& 0xffu", "logfmt", BYTES),
    "log_range_without_limit": one(
        LOGFMT, "own > lowest ? own : lowest", "own", "logfmt_wild", BYTES
    ),
    "log_of_denormals": one(
        LOGFMT, "kSmallestNormal} << 16 ? 0u", "kSmallestNormal} << 16 ? 1u", "logfmt_tiny", BYTES
    ),
    "log_groups_overtake_the_copy": one(
        LOGFMT, "encode_groups(team, open_half(team),", "encode_groups(team, team.half(),", "logfmt"
    ),
    "sums_are_rounded_twice": one(
        REDUCE,
        "__fmaf_rn(weight, low_bf16(x[i].w[c]), sum[2 * c])",
        "__fadd_rn(__fmul_rn(weight, low_bf16(x[i].w[c])), sum[2 * c])",
        "cancelling",
        BYTES,
    ),
    "sums_are_truncated": one(REDUCE, "cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32", "few", BYTES),
    "sums_go_backwards": one(
        REDUCE,
        BATCHES,
        "int first = (n - 1) / kSumBatch * kSumBatch; first >= 0; first -= kSumBatch",
        "top_16",
        BYTES,
    ),
    "teams_take_the_same_items": one(
        TEAM, SHARE, SHARE.replace("= index_", "= index_ / 2"), "many", ANY
    ),
    "stride_is_short": one(
        TEAM, SHARE, SHARE.replace("+= count_", "+= max(count_ - 1, 1)"), "many few", ANY
    ),
    "stride_of_blocks_is_long": one(
        TEAM, "next < end; next += count_)", "next < end; next += count_ + 1)", "few", ANY
    ),
    "last_run_is_not_counted": one(
        REARRANGE,
        "for (int r = 0; r < runs; ++r)",
        "for (int r = 0; r < runs - 1; ++r)",
        "even",
        ANY,
    ),
}
