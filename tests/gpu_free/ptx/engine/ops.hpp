// How an arithmetic instruction is written down: a function of its operands, lifted to the lanes of a warp.
#pragma once

#include <bit>
#include <type_traits>
#include <utility>

#include "machine.hpp"

namespace ptx {

// Registers are 64 bits wide; an operand is their low part.
template <class T>
inline T get(u64 raw) {
    if constexpr (std::is_same_v<T, float>) {
        return std::bit_cast<float>(static_cast<u32>(raw));
    } else if constexpr (std::is_same_v<T, double>) {
        return std::bit_cast<double>(raw);
    } else {
        return static_cast<T>(raw);
    }
}

inline u64 put(float value) {
    return std::bit_cast<u32>(value);
}
inline u64 put(double value) {
    return std::bit_cast<u64>(value);
}
template <class T>
inline u64 put(T value) {
    return static_cast<std::make_unsigned_t<T>>(value);
}

struct Sources {
    const u64* lanes[8];

    Sources(const Machine& machine, Warp& warp, const Instr& instr) {
        for (u32 i = 0; i < instr.num_src; ++i) lanes[i] = machine.value(warp, instr.src[i]);
    }
    template <class T>
    T as(u32 operand, u32 lane) const {
        return get<T>(lanes[operand][lane]);
    }
};

template <auto F, class... Args>
Next apply(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    each(mask, [&](u32 lane) {
        dst[lane] = [&]<std::size_t... I>(std::index_sequence<I...>) {
            return put(F(src.as<Args>(I, lane)...));
        }(std::index_sequence_for<Args...>{});
    });
    return Next::advance;
}

// A predicate register keeps a bit for each lane in its first word.
inline void put_bits(Warp& warp, i32 slot, u32 mask, u32 bits) {
    u64& word = warp.at(slot)[0];
    word = (word & ~mask) | (bits & mask);
}
inline u32 bits_of(const Machine& machine, Warp& warp, i32 operand) {
    return static_cast<u32>(machine.value(warp, operand)[0]);
}

void add_integer_ops();
void add_bit_ops();
void add_float_ops();
void add_half_ops();
void add_compare_ops();
void add_convert_ops();
void add_control_ops();
void add_access_ops();
void add_warp_ops();
void add_barrier_ops();
void add_bulk_ops();
void add_mbarrier_ops();
void add_network_ops();

// The lanes that execute the instruction now; 0: not all that `members` names are here yet. Barriers meet at
// any bar.warp.sync, the others at the same instruction.
u32 gather(Machine& machine, Warp& warp, const Instr& instr, u32 mask, const u64* members, bool anywhere);
// They go on.
Next done(Warp& warp, u32 lanes);

}  // namespace ptx
