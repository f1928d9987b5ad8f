// f32 and f64 arithmetic, exact as IEEE 754 has it. num[0]: flush subnormals; num[1]: saturate to [0, 1];
// num[2]: rounding; num[3]: NaN wins in min and max.
#include <cfenv>
#include <cmath>

#include "formats.hpp"
#include "ops.hpp"

namespace ptx {

namespace {

float flushed(float value) {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}
double flushed(double value) {
    return value;
}
float canonical(float value) {
    return std::isnan(value) ? std::bit_cast<float>(0x7fffffffu) : value;
}
double canonical(double value) {
    return std::isnan(value) ? std::bit_cast<double>(0x7fffffffffffffffull) : value;
}

template <class T>
T clamped(T value) {
    return value > 0 ? std::fmin(value, T{1}) : T{0};
}

constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

template <auto F, class T, class... Args>
Next real(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    const bool flush = instr.num[0] != 0, saturate = instr.num[1] != 0;
    if (instr.num[2] != kNearest) std::fesetround(kModes[instr.num[2]]);
    each(mask, [&](u32 lane) {
        const auto operand = [&](u32 i) {
            const T value = src.as<T>(i, lane);
            return flush ? flushed(value) : value;
        };
        T result = [&]<std::size_t... I>(std::index_sequence<I...>) {
            return F(static_cast<Args>(operand(I))...);
        }(std::index_sequence_for<Args...>{});
        if (flush) result = flushed(result);
        dst[lane] = put(canonical(saturate ? clamped(result) : result));
    });
    if (instr.num[2] != kNearest) std::fesetround(FE_TONEAREST);
    return Next::advance;
}

template <class T, bool kMax>
T pick(T a, T b) {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) == kMax ? b : a;
    return (a < b) == kMax ? b : a;
}

template <class T, bool kMax, bool kThree>
Next extreme(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    each(mask, [&](u32 lane) {
        T result = src.as<T>(0, lane);
        if (instr.num[0] != 0) result = flushed(result);
        bool nan = std::isnan(result);
        for (u32 i = 1; i < (kThree ? 3 : 2); ++i) {
            const T other = instr.num[0] != 0 ? flushed(src.as<T>(i, lane)) : src.as<T>(i, lane);
            nan = nan || std::isnan(other);
            result = pick<T, kMax>(result, other);
        }
        if (nan && instr.num[3] != 0) result = std::numeric_limits<T>::quiet_NaN();
        dst[lane] = put(canonical(result));
    });
    return Next::advance;
}

// Sign changes keep every other bit.
template <class T, class U>
void add_sign_ops(const std::string& type) {
    constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
    add_handler("neg." + type, apply<[](T a) { return std::bit_cast<T>(std::bit_cast<U>(a) ^ kSign); }, T>);
    add_handler("abs." + type, apply<[](T a) { return std::bit_cast<T>(std::bit_cast<U>(a) & ~kSign); }, T>);
    add_handler("copysign." + type, apply<[](T a, T b) {
                    return std::bit_cast<T>((std::bit_cast<U>(b) & ~kSign) | (std::bit_cast<U>(a) & kSign));
                },
                                          T, T>);
}

template <class T>
void add_type(const std::string& type) {
    add_handler("add." + type, real<[](T a, T b) { return a + b; }, T, T, T>);
    add_handler("sub." + type, real<[](T a, T b) { return a - b; }, T, T, T>);
    add_handler("mul." + type, real<[](T a, T b) { return a * b; }, T, T, T>);
    add_handler("fma." + type, real<[](T a, T b, T c) { return std::fma(a, b, c); }, T, T, T, T>);
    add_handler("div." + type, real<[](T a, T b) { return a / b; }, T, T, T>);
    add_handler("rcp." + type, real<[](T a) { return T{1} / a; }, T, T>);
    add_handler("sqrt." + type, real<[](T a) { return std::sqrt(a); }, T, T>);
    add_handler("min." + type, extreme<T, false, false>);
    add_handler("max." + type, extreme<T, true, false>);
    add_handler("min3." + type, extreme<T, false, true>);
    add_handler("max3." + type, extreme<T, true, true>);
}

}  // namespace

void add_float_ops() {
    add_type<float>("f32");
    add_type<double>("f64");
    add_sign_ops<float, u32>("f32");
    add_sign_ops<double, u64>("f64");
}

}  // namespace ptx
