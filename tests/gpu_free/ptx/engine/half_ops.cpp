// f16 and bf16 arithmetic, alone and in pairs. num[0]: the format (0: f16, 1: bf16); num[1]: numbers in a
// register; num[2]: NaN wins in min and max; num[3]: saturate to [0, 1]; num[4]: negative becomes 0.
#include <cmath>

#include "formats.hpp"
#include "ops.hpp"

namespace ptx {

namespace {

enum Op { kFma, kAdd, kSub, kMul, kMin, kMax };

double extreme(double a, double b, bool max, bool nan_wins) {
    if (std::isnan(a) || std::isnan(b))
        return nan_wins || (std::isnan(a) && std::isnan(b)) ? NAN : std::isnan(a) ? b : a;
    if (a == b) return std::signbit(a) == max ? b : a;
    return (a < b) == max ? b : a;
}

template <Op kOp>
double compute(const double* in, bool nan_wins) {
    switch (kOp) {
        case kFma:
            return fma_odd(in[0], in[1], in[2]);
        case kAdd:
            return fma_odd(in[0], 1.0, in[1]);
        case kSub:
            return fma_odd(in[0], 1.0, -in[1]);
        case kMul:
            return in[0] * in[1];
        default:
            return extreme(in[0], in[1], kOp == kMax, nan_wins);
    }
}

template <Op kOp>
Next half(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    const Format& format = instr.num[0] != 0 ? kBf16 : kF16;
    each(mask, [&](u32 lane) {
        u64 result = 0;
        for (u32 part = 0; part < instr.num[1]; ++part) {
            double in[3] = {};
            for (u32 i = 0; i < instr.num_src; ++i)
                in[i] = widen(format, static_cast<u32>(src.lanes[i][lane] >> (16 * part)) & 0xffff);
            double value = compute<kOp>(in, instr.num[2] != 0);
            if (instr.num[3] != 0) value = value > 0 ? std::fmin(value, 1.0) : 0.0;
            if (instr.num[4] != 0 && value < 0) value = 0.0;
            result |= u64{narrow(format, value, kNearest, false)} << (16 * part);
        }
        dst[lane] = result;
    });
    return Next::advance;
}

// Sign changes keep every other bit.
template <bool kAbs>
Next sign(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    const u64 signs = instr.num[1] == 2 ? 0x80008000u : 0x8000u;
    each(mask, [&](u32 lane) {
        const u64 in = src.lanes[0][lane] & (instr.num[1] == 2 ? 0xffffffffu : 0xffffu);
        dst[lane] = kAbs ? in & ~signs : in ^ signs;
    });
    return Next::advance;
}

}  // namespace

void add_half_ops() {
    add_handler("half.fma", half<kFma>);
    add_handler("half.add", half<kAdd>);
    add_handler("half.sub", half<kSub>);
    add_handler("half.mul", half<kMul>);
    add_handler("half.min", half<kMin>);
    add_handler("half.max", half<kMax>);
    add_handler("half.neg", sign<false>);
    add_handler("half.abs", sign<true>);
}

}  // namespace ptx
