// Logic, shifts, bit fields, moves and selections.
#include "ops.hpp"

namespace ptx {

namespace {

template <class T>
T shift_left(T a, u32 b) {
    return b >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << b);
}
template <class T>
T shift_right(T a, u32 b) {
    constexpr u32 kLast = 8 * sizeof(T) - 1;
    if (b <= kLast) return static_cast<T>(a >> b);
    return std::is_signed_v<T> ? static_cast<T>(a >> kLast) : T{0};
}

template <class T>
T extract(T a, u32 at, u32 length) {
    constexpr u32 kBits = 8 * sizeof(T);
    at &= 0xff;
    length &= 0xff;
    using U = std::make_unsigned_t<T>;
    const u32 last = std::min(at + length - 1, kBits - 1);
    const bool sign = std::is_signed_v<T> && length != 0 && (static_cast<U>(a) >> last & 1) != 0;
    U result = 0;
    for (u32 i = 0; i < kBits; ++i) {
        const bool inside = i < length && at + i < kBits;
        const bool bit = inside ? (static_cast<U>(a) >> (at + i) & 1) != 0 : sign;
        result |= static_cast<U>(U{bit} << i);
    }
    return static_cast<T>(result);
}
template <class T>
T insert(T a, T b, u32 at, u32 length) {
    constexpr u32 kBits = 8 * sizeof(T);
    at &= 0xff;
    length &= 0xff;
    for (u32 i = 0; i < length && at + i < kBits; ++i) {
        const T bit = T{1} << (at + i);
        b = (a >> i & 1) != 0 ? b | bit : b & ~bit;
    }
    return b;
}

u32 lop3(u32 a, u32 b, u32 c, u32 table) {
    u32 result = 0;
    if (table & 0x01) result |= ~a & ~b & ~c;
    if (table & 0x02) result |= ~a & ~b & c;
    if (table & 0x04) result |= ~a & b & ~c;
    if (table & 0x08) result |= ~a & b & c;
    if (table & 0x10) result |= a & ~b & ~c;
    if (table & 0x20) result |= a & ~b & c;
    if (table & 0x40) result |= a & b & ~c;
    if (table & 0x80) result |= a & b & c;
    return result;
}

u32 permute(u32 a, u32 b, u32 select) {
    const u64 both = u64{b} << 32 | a;
    u32 result = 0;
    for (u32 i = 0; i < 4; ++i) {
        const u32 nibble = select >> (4 * i) & 0xf;
        u32 byte = static_cast<u32>(both >> (8 * (nibble & 7))) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << (8 * i);
    }
    return result;
}

u32 funnel_left(u32 a, u32 b, u32 by) {
    return static_cast<u32>((u64{b} << 32 | a) << by >> 32);
}
u32 funnel_right(u32 a, u32 b, u32 by) {
    return static_cast<u32>((u64{b} << 32 | a) >> by);
}

template <class T>
T reversed(T a) {
    T result = 0;
    for (u32 i = 0; i < 8 * sizeof(T); ++i) result |= static_cast<T>((a >> i & 1) << (8 * sizeof(T) - 1 - i));
    return result;
}

template <class T, bool kShift>
u32 find_top(T a) {
    using U = std::make_unsigned_t<T>;
    const U bits = std::is_signed_v<T> && a < 0 ? static_cast<U>(~a) : static_cast<U>(a);
    if (bits == 0) return kAll;
    const u32 top = static_cast<u32>(std::bit_width(bits)) - 1;
    return kShift ? 8 * sizeof(T) - 1 - top : top;
}

// The n-th set bit of a mask, counted from `base`; all ones: there is none.
u32 find_nth(u32 mask, u32 base, i32 nth) {
    const int step = nth < 0 ? -1 : 1;
    int left = nth < 0 ? -nth : nth;
    if (left == 0) return (mask >> (base & 31) & 1) != 0 ? base : kAll;
    for (int at = static_cast<int>(base); at >= 0 && at < 32; at += step)
        if ((mask >> at & 1) != 0 && --left == 0) return static_cast<u32>(at);
    return kAll;
}

u32 bit_mask(u32 at, u32 length) {
    return shift_left<u32>(length > 31 ? kAll : (1u << length) - 1, at);
}

template <class T>
Next select(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 condition = bits_of(machine, warp, instr.src[2]);
    u64* dst = warp.at(instr.dst[0]);
    each(mask, [&](u32 lane) { dst[lane] = src.as<T>((condition >> lane & 1) != 0 ? 0 : 1, lane); });
    return Next::advance;
}

// num[0]: bits of a piece.
Next pack(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 bits = static_cast<u32>(instr.num[0]);
    u64* dst = warp.at(instr.dst[0]);
    each(mask, [&](u32 lane) {
        u64 result = 0;
        for (u32 i = 0; i < instr.num_src; ++i)
            result |= (src.lanes[i][lane] & ((u64{1} << bits) - 1)) << (bits * i);
        dst[lane] = result;
    });
    return Next::advance;
}
Next unpack(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 bits = static_cast<u32>(instr.num[0]);
    each(mask, [&](u32 lane) {
        const u64 whole = src.lanes[0][lane];
        for (u32 i = 0; i < instr.num_dst; ++i)
            warp.at(instr.dst[i])[lane] = whole >> (bits * i) & ((u64{1} << bits) - 1);
    });
    return Next::advance;
}

template <auto F>
Next logic(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const u32 a = bits_of(machine, warp, instr.src[0]);
    const u32 b = instr.num_src > 1 ? bits_of(machine, warp, instr.src[1]) : 0;
    put_bits(warp, instr.dst[0], mask, F(a, b));
    return Next::advance;
}

template <class T>
void add_size(const std::string& size) {
    add_handler("and." + size, apply<[](T a, T b) { return static_cast<T>(a & b); }, T, T>);
    add_handler("or." + size, apply<[](T a, T b) { return static_cast<T>(a | b); }, T, T>);
    add_handler("xor." + size, apply<[](T a, T b) { return static_cast<T>(a ^ b); }, T, T>);
    add_handler("not." + size, apply<[](T a) { return static_cast<T>(~a); }, T>);
    add_handler("cnot." + size, apply<[](T a) { return static_cast<T>(a == 0); }, T>);
    add_handler("shl." + size, apply<shift_left<T>, T, u32>);
    add_handler("shr.u" + size, apply<shift_right<T>, T, u32>);
    add_handler("shr.s" + size, apply<shift_right<std::make_signed_t<T>>, std::make_signed_t<T>, u32>);
    add_handler("mov." + size, apply<[](T a) { return a; }, T>);
    add_handler("selp." + size, select<T>);
}

template <class T>
void add_wide(const std::string& size) {
    using S = std::make_signed_t<T>;
    add_handler("bfe.u" + size, apply<extract<T>, T, u32, u32>);
    add_handler("bfe.s" + size, apply<extract<S>, S, u32, u32>);
    add_handler("bfi." + size, apply<insert<T>, T, T, u32, u32>);
    add_handler("popc." + size, apply<[](T a) { return static_cast<u32>(std::popcount(a)); }, T>);
    add_handler("clz." + size, apply<[](T a) { return static_cast<u32>(std::countl_zero(a)); }, T>);
    add_handler("brev." + size, apply<reversed<T>, T>);
    add_handler("bfind.u" + size, apply<find_top<T, false>, T>);
    add_handler("bfind.s" + size, apply<find_top<S, false>, S>);
    add_handler("bfind.shiftamt.u" + size, apply<find_top<T, true>, T>);
    add_handler("bfind.shiftamt.s" + size, apply<find_top<S, true>, S>);
}

}  // namespace

void add_bit_ops() {
    add_size<u16>("16");
    add_size<u32>("32");
    add_size<u64>("64");
    add_wide<u32>("32");
    add_wide<u64>("64");
    add_handler("lop3", apply<lop3, u32, u32, u32, u32>);
    add_handler("prmt", apply<permute, u32, u32, u32>);
    add_handler("shf.l.wrap",
                apply<[](u32 a, u32 b, u32 c) { return funnel_left(a, b, c & 31); }, u32, u32, u32>);
    add_handler("shf.r.wrap",
                apply<[](u32 a, u32 b, u32 c) { return funnel_right(a, b, c & 31); }, u32, u32, u32>);
    add_handler(
        "shf.l.clamp",
        apply<[](u32 a, u32 b, u32 c) { return funnel_left(a, b, std::min(c, 32u)); }, u32, u32, u32>);
    add_handler(
        "shf.r.clamp",
        apply<[](u32 a, u32 b, u32 c) { return funnel_right(a, b, std::min(c, 32u)); }, u32, u32, u32>);
    add_handler("fns", apply<find_nth, u32, u32, i32>);
    add_handler("bmsk.clamp", apply<bit_mask, u32, u32>);
    add_handler("slct.32", apply<[](u32 a, u32 b, i32 c) { return c >= 0 ? a : b; }, u32, u32, i32>);
    add_handler("slct.64", apply<[](u64 a, u64 b, i32 c) { return c >= 0 ? a : b; }, u64, u64, i32>);
    add_handler("pack", pack);
    add_handler("unpack", unpack);
    add_handler("mov.pred", logic<[](u32 a, u32) { return a; }>);
    add_handler("not.pred", logic<[](u32 a, u32) { return ~a; }>);
    add_handler("and.pred", logic<[](u32 a, u32 b) { return a & b; }>);
    add_handler("or.pred", logic<[](u32 a, u32 b) { return a | b; }>);
    add_handler("xor.pred", logic<[](u32 a, u32 b) { return a ^ b; }>);
}

}  // namespace ptx
