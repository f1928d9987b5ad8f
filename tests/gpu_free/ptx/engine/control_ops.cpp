// Control flow, special registers, addresses, and instructions that do nothing here.
#include "ops.hpp"

namespace ptx {

namespace {

Next branch(Machine&, Warp& warp, const Instr& instr, u32 mask) {
    each(mask, [&](u32 lane) { warp.pc[lane] = instr.target; });
    return Next::placed;
}

// num[0]: where its targets begin in the program's tables; num[1]: how many.
Next branch_index(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    each(mask, [&](u32 lane) {
        const u32 index = src.as<u32>(0, lane);
        if (index >= instr.num[1])
            machine.fault(warp, lane, instr, "no branch target " + std::to_string(index));
        warp.pc[lane] = machine.program.tables[static_cast<std::size_t>(instr.num[0]) + index];
    });
    return Next::placed;
}

Next leave(Machine& machine, Warp& warp, const Instr&, u32 mask) {
    machine.exit(warp, mask);
    return Next::placed;
}

Next trap(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    machine.fault(warp, static_cast<u32>(__builtin_ctz(mask)), instr, "trap");
}

Next nothing(Machine&, Warp&, const Instr&, u32) {
    return Next::advance;
}
Next pause(Machine&, Warp&, const Instr&, u32) {
    return Next::yield;
}

Next zero(Machine&, Warp& warp, const Instr& instr, u32 mask) {
    each(mask, [&](u32 lane) { warp.at(instr.dst[0])[lane] = 0; });
    return Next::advance;
}

enum Special : int {
    kTid = 0,  // x, y, z follow each other
    kNtid = 3,
    kCtaid = 6,
    kNctaid = 9,
    kLaneid = 12,
    kWarpid,
    kSmid,
    kNsmid,
    kTime,
    kTimeLow,
    kClock,
    kMaskEq,
    kMaskLt,
    kMaskLe,
    kMaskGt,
    kMaskGe,
    kGridid,
    kDynamicShared,
    kTotalShared,
    kSymbol,
    kNwarpid,
    kTimeHigh,
};

u64 of_thread(const Launch& launch, const Block& block, u32 linear, i64 which) {
    switch (which) {
        case kTid:
            return linear % launch.block[0];
        case kTid + 1:
            return linear / launch.block[0] % launch.block[1];
        case kTid + 2:
            return linear / launch.block[0] / launch.block[1];
        default:
            break;
    }
    if (which < kCtaid) return launch.block[which - kNtid];
    return which < kNctaid ? block.id[which - kCtaid] : launch.grid[which - kNctaid];
}

u32 lane_mask(u32 lane, i64 which) {
    const u32 bit = 1u << lane;
    switch (which) {
        case kMaskEq:
            return bit;
        case kMaskLt:
            return bit - 1;
        case kMaskLe:
            return bit | (bit - 1);
        case kMaskGt:
            return ~(bit | (bit - 1));
        default:
            return ~(bit - 1);
    }
}

u64 of_machine(const Machine& machine, const Warp& warp, u32 lane, const Instr& instr) {
    const Launch& launch = *warp.block->launch;
    const u64 now = machine.options.start_ns + machine.steps * machine.options.ns_per_step;
    if (instr.num[0] >= kMaskEq && instr.num[0] <= kMaskGe) return lane_mask(lane, instr.num[0]);
    switch (instr.num[0]) {
        case kLaneid:
            return lane;
        case kWarpid:
            return warp.index;
        case kSmid:
            return warp.block->index;
        case kNsmid:
            return launch.num_blocks;
        case kTime:
            return now;
        case kTimeLow:
            return static_cast<u32>(now);
        case kTimeHigh:
            return now >> 32;
        case kClock:
            return machine.steps;
        case kGridid:
            return launch.serial;
        case kDynamicShared:
            return launch.shared_bytes;
        case kTotalShared:
            return launch.shared_bytes + launch.entry->static_shared;
        case kNwarpid:
            return 64;
        default:
            return machine.symbols[launch.gpu * machine.num_symbols + static_cast<std::size_t>(instr.num[1])];
    }
}

// num[0]: which; num[1]: the number of a module variable.
Next special(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    u64* dst = warp.at(instr.dst[0]);
    const Block& block = *warp.block;
    each(mask, [&](u32 lane) {
        dst[lane] = instr.num[0] < kLaneid
                        ? of_thread(*block.launch, block, warp.index * kLanes + lane, instr.num[0])
                        : of_machine(machine, warp, lane, instr);
    });
    return Next::advance;
}

enum Conversion : int { kSame, kFromShared, kToShared, kFromParam, kToParam };

// num[0]: which way.
Next convert_address(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u64* dst = warp.at(instr.dst[0]);
    const u64 window = warp.block->shared_window, params = warp.block->launch->params;
    const u64 shifts[] = {0, window, -window, params, -params};
    const u64 shift = shifts[instr.num[0]];
    // A 32-bit register may hold a shared address; its high part is then not part of it.
    const u64 bits = instr.num[0] == kFromShared || instr.num[0] == kFromParam ? 0xffffffffull : ~u64{0};
    each(mask, [&](u32 lane) { dst[lane] = (src.lanes[0][lane] & bits) + shift; });
    return Next::advance;
}

// num[0]: the space asked for: 0 global, 1 shared.
Next is_space(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u32 result = 0;
    each(mask, [&](u32 lane) {
        const bool shared = machine.in_shared(warp, src.lanes[0][lane] - kBase);
        result |= u32{shared == (instr.num[0] == 1)} << lane;
    });
    put_bits(warp, instr.dst[0], mask, result);
    return Next::advance;
}

}  // namespace

void add_control_ops() {
    add_handler("bra", branch);
    add_handler("brx", branch_index);
    add_handler("exit", leave);
    add_handler("trap", trap);
    add_handler("nop", nothing);
    add_handler("pause", pause);
    add_handler("zero", zero);
    add_handler("special", special);
    add_handler("cvta", convert_address);
    add_handler("isspacep", is_space);
}

}  // namespace ptx
