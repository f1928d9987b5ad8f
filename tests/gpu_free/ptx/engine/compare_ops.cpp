// setp and set. num[0]: how the result is combined with the predicate src[2] (0: not, 1: and, 2: or, 3: xor);
// num[1]: that predicate is negated; num[2]: flush subnormals; num[3]: what `set` writes for true, 0 for
// setp.
#include <cmath>

#include "formats.hpp"
#include "ops.hpp"

namespace ptx {

namespace {

struct F16 {};
struct Bf16 {};

template <class T>
auto load(u64 raw, bool flush) {
    if constexpr (std::is_same_v<T, F16>) {
        return widen(kF16, static_cast<u32>(raw) & 0xffff);
    } else if constexpr (std::is_same_v<T, Bf16>) {
        return widen(kBf16, static_cast<u32>(raw) & 0xffff);
    } else if constexpr (std::is_same_v<T, float>) {
        const float value = get<float>(raw);
        return flush && std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value;
    } else {
        return get<T>(raw);
    }
}

template <class T, auto F>
u32 compare(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u32 result = 0;
    each(mask, [&](u32 lane) {
        const auto a = load<T>(src.lanes[0][lane], instr.num[2] != 0);
        const auto b = load<T>(src.lanes[1][lane], instr.num[2] != 0);
        result |= u32{F(a, b)} << lane;
    });
    return result;
}

u32 combine(u32 result, u32 other, i64 how) {
    switch (how) {
        case 1:
            return result & other;
        case 2:
            return result | other;
        case 3:
            return result ^ other;
        default:
            return result;
    }
}

Next finish(Machine& machine, Warp& warp, const Instr& instr, u32 mask, u32 result) {
    u32 other = instr.num[0] != 0 ? bits_of(machine, warp, instr.src[2]) : 0;
    if (instr.num[1] != 0) other = ~other;
    const u32 first = combine(result, other, instr.num[0]);
    if (instr.num[3] != 0) {
        u64* dst = warp.at(instr.dst[0]);
        each(mask,
             [&](u32 lane) { dst[lane] = (first >> lane & 1) != 0 ? static_cast<u64>(instr.num[3]) : 0; });
        return Next::advance;
    }
    put_bits(warp, instr.dst[0], mask, first);
    if (instr.num_dst > 1) put_bits(warp, instr.dst[1], mask, combine(~result, other, instr.num[0]));
    return Next::advance;
}

// Both instructions in one function: it is compiled for every comparison and type.
template <class T, auto F>
Next compared(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    return finish(machine, warp, instr, mask, compare<T, F>(machine, warp, instr, mask));
}

template <class T, auto F>
void add_one(const std::string& name, const std::string& type) {
    add_handler("compare." + name + "." + type, compared<T, F>);
}

constexpr auto kEq = [](auto a, auto b) { return a == b; };
constexpr auto kNe = [](auto a, auto b) { return a < b || a > b; };
constexpr auto kLt = [](auto a, auto b) { return a < b; };
constexpr auto kLe = [](auto a, auto b) { return a <= b; };
constexpr auto kGt = [](auto a, auto b) { return a > b; };
constexpr auto kGe = [](auto a, auto b) { return a >= b; };
// Those that a NaN makes true.
constexpr auto kEqu = [](auto a, auto b) { return !(a < b || a > b); };
constexpr auto kNeu = [](auto a, auto b) { return !(a == b); };
constexpr auto kLtu = [](auto a, auto b) { return !(a >= b); };
constexpr auto kLeu = [](auto a, auto b) { return !(a > b); };
constexpr auto kGtu = [](auto a, auto b) { return !(a <= b); };
constexpr auto kGeu = [](auto a, auto b) { return !(a < b); };
constexpr auto kNum = [](auto a, auto b) { return !std::isnan(a) && !std::isnan(b); };
constexpr auto kNan = [](auto a, auto b) { return std::isnan(a) || std::isnan(b); };

template <class T>
void add_ordered(const std::string& type) {
    add_one<T, kEq>("eq", type);
    add_one<T, kNe>("ne", type);
    add_one<T, kLt>("lt", type);
    add_one<T, kLe>("le", type);
    add_one<T, kGt>("gt", type);
    add_one<T, kGe>("ge", type);
}

template <class T>
void add_unordered(const std::string& type) {
    add_one<T, kEqu>("equ", type);
    add_one<T, kNeu>("neu", type);
    add_one<T, kLtu>("ltu", type);
    add_one<T, kLeu>("leu", type);
    add_one<T, kGtu>("gtu", type);
    add_one<T, kGeu>("geu", type);
    add_one<T, kNum>("num", type);
    add_one<T, kNan>("nan", type);
}

}  // namespace

void add_compare_ops() {
    add_ordered<u16>("u16");
    add_ordered<u32>("u32");
    add_ordered<u64>("u64");
    add_ordered<i16>("s16");
    add_ordered<i32>("s32");
    add_ordered<i64>("s64");
    add_ordered<float>("f32");
    add_ordered<double>("f64");
    add_ordered<F16>("f16");
    add_ordered<Bf16>("bf16");
    add_unordered<float>("f32");
    add_unordered<double>("f64");
    add_unordered<F16>("f16");
    add_unordered<Bf16>("bf16");
}

}  // namespace ptx
