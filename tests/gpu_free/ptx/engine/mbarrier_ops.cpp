// mbarrier: objects in shared memory that count arrivals and bytes, phase by phase. num[0]: space;
// num[1]: added to the address.
#include "ops.hpp"

namespace ptx {

namespace {

u64 place(Machine& machine, Warp& warp, u32 lane, const Instr& instr) {
    const u64 value = machine.value(warp, instr.src[0])[lane] + static_cast<u64>(instr.num[1]);
    const u64 offset =
        machine.locate(warp, lane, instr, machine.generic(warp, instr.num[0] != 0, value), 8, 8);
    if (!machine.in_shared(warp, offset))
        machine.fault(warp, lane, instr, "an mbarrier outside of shared memory");
    return offset;
}

Mbarrier& use(Machine& machine, Warp& warp, u32 lane, const Instr& instr, u64 offset, bool writes) {
    const auto found = machine.mbarriers.find(offset);
    if (found == machine.mbarriers.end())
        machine.fault(warp, lane, instr, "no mbarrier was initialised at " + machine.memory.name(offset));
    const Actor actor = machine.actor(warp, lane, instr, kCta, 3, writes);
    if (writes) {
        machine.shadow.write(offset, 8, actor, true);
        machine.changed = machine.steps;
    } else {
        machine.shadow.read(offset, 8, actor, true);
    }
    return found->second;
}

Next init(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    each(mask, [&](u32 lane) {
        const u64 offset = place(machine, warp, lane, instr);
        const u32 id = warp.first_thread + lane, count = src.as<u32>(1, lane);
        machine.shadow.write(offset, 8, machine.actor(warp, lane, instr, kWeak, 3, true), true);
        const ClockRef nothing(static_cast<u32>(machine.threads.size()));
        machine.mbarriers[offset] = {count,      count,   0,      0, id, machine.threads[id].time,
                                     instr.text, nothing, nothing};
        machine.changed = machine.steps;
    });
    return Next::advance;
}

Next invalidate(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    each(mask, [&](u32 lane) {
        const u64 offset = place(machine, warp, lane, instr);
        use(machine, warp, lane, instr, offset, true);
        machine.shadow.write(offset, 8, machine.actor(warp, lane, instr, kWeak, 3, true), true);
        machine.mbarriers.erase(offset);
    });
    return Next::advance;
}

// num[2]: src[1] is a count of bytes to expect; num[3]: it is a count of arrivals; num[4]: does not arrive.
Next arrive(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    each(mask, [&](u32 lane) {
        Mbarrier& mbarrier = use(machine, warp, lane, instr, place(machine, warp, lane, instr), true);
        const u32 id = warp.first_thread + lane;
        if (instr.num[2] != 0) mbarrier.bytes += src.as<u32>(1, lane);
        if (instr.num_dst != 0) warp.at(instr.dst[0])[lane] = mbarrier.phase;
        if (instr.num[4] != 0) return;
        const u32 count = instr.num[3] != 0 ? src.as<u32>(1, lane) : 1;
        if (count > mbarrier.pending)
            machine.fault(warp, lane, instr, "more arrivals than the mbarrier counts");
        learn(mbarrier.arriving, machine.knowledge(id));
        machine.tick(id);
        machine.arrive(mbarrier, count);
    });
    return Next::advance;
}

// num[2]: src[1] is a parity, not a state; num[3]: acquires.
Next wait(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    u32 done = 0;
    each(mask, [&](u32 lane) {
        const Mbarrier& mbarrier = use(machine, warp, lane, instr, place(machine, warp, lane, instr), false);
        const u64 wanted = src.lanes[1][lane];
        const bool over = instr.num[2] != 0 ? (mbarrier.phase & 1) != (wanted & 1) : mbarrier.phase > wanted;
        done |= u32{over} << lane;
        if (over && instr.num[3] != 0)
            learn(machine.thread(warp, lane).others, Knowledge{mbarrier.completed});
    });
    put_bits(warp, instr.dst[0], mask, done);
    return done == mask ? Next::advance : Next::yield;
}

}  // namespace

void add_mbarrier_ops() {
    add_handler("mbarrier.init", init);
    add_handler("mbarrier.inval", invalidate);
    add_handler("mbarrier.arrive", arrive);
    add_handler("mbarrier.wait", wait);
}

}  // namespace ptx
