// Integer arithmetic: add, sub, mul, mad, div, rem, min, max, carries, dot products.
#include <limits>

#include "ops.hpp"

namespace ptx {

namespace {

using i128 = __int128;
using u128 = unsigned __int128;

template <class T>
using Wide = std::conditional_t<sizeof(T) == 8,
                                std::conditional_t<std::is_signed_v<T>, i128, u128>,
                                std::conditional_t<sizeof(T) == 4,
                                                   std::conditional_t<std::is_signed_v<T>, i64, u64>,
                                                   std::conditional_t<std::is_signed_v<T>, i32, u32>>>;
template <class T>
using Unsigned = std::make_unsigned_t<T>;

// Overflow wraps in PTX and is undefined in C++.
template <class T>
T plus(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(static_cast<u64>(a) + static_cast<u64>(b)));
}
template <class T>
T minus(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(static_cast<u64>(a) - static_cast<u64>(b)));
}
template <class T>
T low(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(static_cast<u64>(a) * static_cast<u64>(b)));
}
template <class T>
T high(T a, T b) {
    return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (8 * sizeof(T)));
}
template <class T>
Wide<T> wide(T a, T b) {
    return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
}
template <class T>
bool overflows(T a, T b) {
    return std::is_signed_v<T> && a == std::numeric_limits<T>::min() && b == static_cast<T>(-1);
}
template <class T>
T divide(T a, T b) {
    // What the hardware gives for a zero divisor is not specified; all ones is what it does.
    if (b == 0) return static_cast<T>(-1);
    return overflows(a, b) ? a : static_cast<T>(a / b);
}
template <class T>
T remainder(T a, T b) {
    if (b == 0) return a;
    return overflows(a, b) ? T{0} : static_cast<T>(a % b);
}
template <class T>
T negate(T a) {
    return minus<T>(0, a);
}
template <class T>
T absolute(T a) {
    return a < 0 ? negate(a) : a;
}
i32 saturate(i64 value) {
    constexpr i64 kMin = std::numeric_limits<i32>::min(), kMax = std::numeric_limits<i32>::max();
    return static_cast<i32>(value < kMin ? kMin : value > kMax ? kMax : value);
}

template <class T>
void add_type(const std::string& type) {
    add_handler("add." + type, apply<plus<T>, T, T>);
    add_handler("sub." + type, apply<minus<T>, T, T>);
    add_handler("mul.lo." + type, apply<low<T>, T, T>);
    add_handler("mul.hi." + type, apply<high<T>, T, T>);
    add_handler("mad.lo." + type, apply<[](T a, T b, T c) { return plus<T>(low<T>(a, b), c); }, T, T, T>);
    add_handler("mad.hi." + type, apply<[](T a, T b, T c) { return plus<T>(high<T>(a, b), c); }, T, T, T>);
    add_handler("div." + type, apply<divide<T>, T, T>);
    add_handler("rem." + type, apply<remainder<T>, T, T>);
    add_handler("min." + type, apply<[](T a, T b) { return b < a ? b : a; }, T, T>);
    add_handler("max." + type, apply<[](T a, T b) { return a < b ? b : a; }, T, T>);
    add_handler(
        "sad." + type,
        apply<[](T a, T b, T c) { return plus<T>(c, a < b ? minus<T>(b, a) : minus<T>(a, b)); }, T, T, T>);
    if constexpr (sizeof(T) < 8) {
        using W = Wide<T>;
        add_handler("mul.wide." + type, apply<wide<T>, T, T>);
        add_handler("mad.wide." + type,
                    apply<[](T a, T b, W c) { return plus<W>(wide<T>(a, b), c); }, T, T, W>);
    }
    if constexpr (std::is_signed_v<T>) {
        add_handler("neg." + type, apply<negate<T>, T>);
        add_handler("abs." + type, apply<absolute<T>, T>);
    }
}

// num[0]: reads the carry; num[1]: writes it.
template <class T, bool kSubtract, bool kProduct, bool kHigh>
Next carried(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    each(mask, [&](u32 lane) {
        T a = src.as<T>(0, lane), b = src.as<T>(1, lane);
        if (kProduct) {
            a = kHigh ? high<T>(a, b) : low<T>(a, b);
            b = src.as<T>(2, lane);
        }
        const T carry = instr.num[0] != 0 ? static_cast<T>(warp.carry >> lane & 1) : T{0};
        const T first = kSubtract ? static_cast<T>(a - b) : static_cast<T>(a + b);
        const T result = kSubtract ? static_cast<T>(first - carry) : static_cast<T>(first + carry);
        const bool out = kSubtract ? a < b || first < carry : first < a || result < first;
        dst[lane] = result;
        if (instr.num[1] != 0) warp.carry = (warp.carry & ~(1u << lane)) | u32{out} << lane;
    });
    return Next::advance;
}

template <class T>
void add_carried(const std::string& size) {
    add_handler("carry.add." + size, carried<T, false, false, false>);
    add_handler("carry.sub." + size, carried<T, true, false, false>);
    add_handler("carry.mad.lo." + size, carried<T, false, true, false>);
    add_handler("carry.mad.hi." + size, carried<T, false, true, true>);
}

// num[0], num[1]: whether a, b are signed.
Next dp4a(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    const auto part = [](u32 word, u32 i, bool is_signed) {
        const u8 byte = static_cast<u8>(word >> (8 * i));
        return is_signed ? i32{static_cast<i8>(byte)} : i32{byte};
    };
    each(mask, [&](u32 lane) {
        u32 sum = src.as<u32>(2, lane);
        for (u32 i = 0; i < 4; ++i)
            sum += static_cast<u32>(part(src.as<u32>(0, lane), i, instr.num[0] != 0) *
                                    part(src.as<u32>(1, lane), i, instr.num[1] != 0));
        dst[lane] = sum;
    });
    return Next::advance;
}

}  // namespace

void add_integer_ops() {
    add_type<u16>("u16");
    add_type<u32>("u32");
    add_type<u64>("u64");
    add_type<i16>("s16");
    add_type<i32>("s32");
    add_type<i64>("s64");
    add_carried<u32>("32");
    add_carried<u64>("64");
    add_handler("add.sat.s32", apply<[](i32 a, i32 b) { return saturate(i64{a} + b); }, i32, i32>);
    add_handler("sub.sat.s32", apply<[](i32 a, i32 b) { return saturate(i64{a} - b); }, i32, i32>);
    add_handler("dp4a", dp4a);
    add_handler("mul24.lo.s32",
                apply<[](i32 a, i32 b) { return low<i32>(a << 8 >> 8, b << 8 >> 8); }, i32, i32>);
    add_handler("mul24.lo.u32",
                apply<[](u32 a, u32 b) { return (a & 0xffffffu) * (b & 0xffffffu); }, u32, u32>);
}

}  // namespace ptx
