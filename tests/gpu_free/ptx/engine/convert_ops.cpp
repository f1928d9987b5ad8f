// cvt. num[0]: type from; num[1]: type to; num[2]: rounding; num[3]: to an integer value; num[4]: saturate;
// num[5]: flush subnormals; num[6]: negative becomes 0. Types are numbered as in decode.py.
#include <cfenv>
#include <cmath>
#include <limits>

#include "formats.hpp"
#include "ops.hpp"

namespace ptx {

namespace {

enum Type : int { kU8, kU16, kU32, kU64, kS8, kS16, kS32, kS64, kHalf, kBfloat, kFloat, kDouble };
constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

bool is_integer(i64 type) {
    return type <= kS64;
}
bool is_signed(i64 type) {
    return type >= kS8 && type <= kS64;
}
u32 bits_in(i64 type) {
    return 8u << (type & 3);
}

i64 extended(u64 raw, i64 type) {
    const u32 unused = 64 - bits_in(type);
    return is_signed(type) ? static_cast<i64>(raw << unused) >> unused
                           : static_cast<i64>(raw << unused >> unused);
}

double load(u64 raw, i64 type, bool flush) {
    switch (type) {
        case kHalf:
            return widen(kF16, static_cast<u32>(raw) & 0xffff);
        case kBfloat:
            return widen(kBf16, static_cast<u32>(raw) & 0xffff);
        case kDouble:
            return get<double>(raw);
        default: {
            const float value = get<float>(raw);
            return flush && std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
        }
    }
}

u64 store(double value, i64 type, int mode, bool flush) {
    if (type == kHalf) return narrow(kF16, value, mode, false);
    if (type == kBfloat) return narrow(kBf16, value, mode, false);
    if (std::isnan(value)) return type == kDouble ? 0x7fffffffffffffffull : 0x7fffffffull;
    if (type == kDouble) return put(value);
    if (mode == kNearest && !flush) return put(static_cast<float>(value));
    std::fesetround(kModes[mode]);
    volatile float result = static_cast<float>(value);
    std::fesetround(FE_TONEAREST);
    const float kept = result;
    return put(flush && std::fpclassify(kept) == FP_SUBNORMAL ? std::copysign(0.0f, kept) : kept);
}

u64 integer_to_float(i64 value, bool is_unsigned, i64 type, int mode) {
    if (type == kFloat && mode == kNearest)
        return put(is_unsigned ? static_cast<float>(static_cast<u64>(value)) : static_cast<float>(value));
    std::fesetround(kModes[mode]);
    volatile float single =
        is_unsigned ? static_cast<float>(static_cast<u64>(value)) : static_cast<float>(value);
    volatile double twice =
        is_unsigned ? static_cast<double>(static_cast<u64>(value)) : static_cast<double>(value);
    std::fesetround(FE_TONEAREST);
    if (type == kFloat) return put(float{single});
    if (type == kDouble) return put(double{twice});
    return narrow(type == kHalf ? kF16 : kBf16, twice, mode, false);
}

u64 float_to_integer(double value, i64 type, int mode) {
    if (std::isnan(value)) return 0;
    const double whole = rounded(value, mode);
    const u32 bits = bits_in(type);
    const double top = std::ldexp(1.0, static_cast<int>(is_signed(type) ? bits - 1 : bits));
    if (whole >= top) return (bits == 64 ? ~u64{0} : (u64{1} << bits) - 1) >> (is_signed(type) ? 1 : 0);
    if (!is_signed(type)) return whole <= 0 ? 0 : static_cast<u64>(whole);
    return static_cast<u64>(whole <= -top ? static_cast<i64>(-top) : static_cast<i64>(whole));
}

u64 integer_to_integer(i64 value, i64 from, i64 to, bool saturate) {
    if (!saturate) return static_cast<u64>(extended(static_cast<u64>(value), to));
    const __int128 wide = is_signed(from) ? __int128{value} : __int128{static_cast<u64>(value)};
    const u32 bits = bits_in(to) - (is_signed(to) ? 1 : 0);
    const __int128 top = (__int128{1} << bits) - 1, bottom = is_signed(to) ? -top - 1 : __int128{0};
    return static_cast<u64>(wide > top ? top : wide < bottom ? bottom : wide);
}

u64 convert(u64 raw, const Instr& instr) {
    const i64 from = instr.num[0], to = instr.num[1];
    const int mode = static_cast<int>(instr.num[2]);
    const bool flush = instr.num[5] != 0;
    if (is_integer(from)) {
        const i64 value = extended(raw, from);
        if (is_integer(to)) return integer_to_integer(value, from, to, instr.num[4] != 0);
        return integer_to_float(value, !is_signed(from), to, mode);
    }
    double value = load(raw, from, flush);
    if (is_integer(to)) return float_to_integer(value, to, mode);
    if (instr.num[3] != 0) value = rounded(value, mode);
    if (instr.num[4] != 0) value = value > 0 ? std::fmin(value, 1.0) : 0.0;
    if (instr.num[6] != 0 && value < 0) value = 0.0;
    return store(value, to, instr.num[3] != 0 ? kNearest : mode, flush);
}

Next cvt(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    each(mask, [&](u32 lane) { dst[lane] = convert(src.lanes[0][lane], instr); });
    return Next::advance;
}

constexpr Format kFormats[] = {kF16, kBf16, kE4m3, kE5m2};

// Two numbers of f32 become one register; the first is the high part. num[0]: format; num[1]: bits of it;
// num[2]: rounding; num[3]: finite; num[4]: negative becomes 0.
Next cvt_pack(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    const Format& format = kFormats[instr.num[0]];
    const auto one = [&](float value) {
        if (instr.num[4] != 0 && value < 0) value = 0.0f;
        return u64{narrow(format, value, static_cast<int>(instr.num[2]), instr.num[3] != 0)};
    };
    each(mask, [&](u32 lane) {
        dst[lane] = one(src.as<float>(0, lane)) << instr.num[1] | one(src.as<float>(1, lane));
    });
    return Next::advance;
}

// A pair becomes a pair of another format: e4m3x2 and f16x2. num[0]: format from; num[1]: its bits; num[2]:
// format to; num[3]: its bits; num[4]: finite.
Next cvt_pair(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    const Format &from = kFormats[instr.num[0]], &to = kFormats[instr.num[2]];
    each(mask, [&](u32 lane) {
        u64 result = 0;
        for (u32 part = 0; part < 2; ++part) {
            const u64 raw = src.lanes[0][lane] >> (part * instr.num[1]) & ((u64{1} << instr.num[1]) - 1);
            const u32 made = narrow(to, widen(from, static_cast<u32>(raw)), kNearest, instr.num[4] != 0);
            result |= u64{made} << (part * instr.num[3]);
        }
        dst[lane] = result;
    });
    return Next::advance;
}

}  // namespace

void add_convert_ops() {
    add_handler("cvt", cvt);
    add_handler("cvt.pack", cvt_pack);
    add_handler("cvt.pair", cvt_pair);
}

}  // namespace ptx
