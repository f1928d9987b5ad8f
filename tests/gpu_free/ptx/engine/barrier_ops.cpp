// Barriers of a block: bar.sync, bar.arrive, bar.red, by number and with a count of threads.
#include "ops.hpp"

namespace ptx {

namespace {

enum What : int { kSync, kArrive, kReduce };
enum Reduction : int { kCount, kAnd, kOr };

void join(Machine& machine, Warp& warp, u32 lanes, ClockRef& known) {
    if (known.get() == nullptr) known = machine.thread(warp, static_cast<u32>(__builtin_ctz(lanes))).others;
    const Clock* last = nullptr;
    each(lanes, [&](u32 lane) {
        Knowledge told = machine.knowledge(warp.first_thread + lane);
        const Clock* now = told.others.get();
        if (now == last) told.others = known;
        last = now;
        learn(known, told);
    });
}

void reduce(Warp& warp, const Instr& instr, u32 lanes, const Barrier& barrier) {
    if (instr.num[0] != kReduce) return;
    if (instr.num[1] == kCount) {
        each(lanes, [&](u32 lane) { warp.at(instr.dst[0])[lane] = barrier.votes; });
        return;
    }
    const bool answer = instr.num[1] == kAnd ? barrier.votes == barrier.any : barrier.votes != 0;
    put_bits(warp, instr.dst[0], lanes, answer ? kAll : 0);
}

void vote(Machine& machine, Warp& warp, const Instr& instr, u32 lanes, Barrier& barrier) {
    u32 yes = bits_of(machine, warp, instr.src[instr.num[3]]);
    yes = (instr.num[4] != 0 ? ~yes : yes) & lanes;
    barrier.votes += static_cast<u32>(__builtin_popcount(yes));
    barrier.any += static_cast<u32>(__builtin_popcount(lanes));
}

// num[0]: what; num[1]: the reduction; num[2]: src[1] is a count of threads; num[3]: which src is the vote;
// num[4]: it is negated.
Next bar(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    Block& block = *warp.block;
    for (u32 left = mask; left != 0;) {
        const u32 first = static_cast<u32>(__builtin_ctz(left));
        const u32 id = src.as<u32>(0, first);
        const u32 expected = instr.num[2] != 0 ? src.as<u32>(1, first) : 0;
        if (id > 15) machine.fault(warp, first, instr, "no barrier " + std::to_string(id));
        if (instr.num[2] != 0 && (expected == 0 || expected % kLanes != 0))
            machine.fault(warp, first, instr, "a barrier of " + std::to_string(expected) + " threads");
        u32 lanes = 0;
        each(left, [&](u32 lane) { lanes |= u32{src.as<u32>(0, lane) == id} << lane; });
        left &= ~lanes;
        Barrier& barrier = block.barriers[id];
        if (barrier.arrived != 0 && barrier.expected != expected)
            machine.fault(warp, first, instr,
                          "barrier " + std::to_string(id) + " is used with different counts");
        barrier.expected = expected;
        barrier.arrived += static_cast<u32>(__builtin_popcount(lanes));
        if (expected != 0 && barrier.arrived > expected)
            machine.fault(warp, first, instr, "more threads than barrier " + std::to_string(id) + " counts");
        join(machine, warp, lanes, barrier.known);
        if (instr.num[0] == kReduce) vote(machine, warp, instr, lanes, barrier);
        if (instr.num[0] == kArrive) {
            each(lanes, [&](u32 lane) {
                ++warp.pc[lane];
                machine.tick(warp.first_thread + lane);
            });
        } else {
            warp.parked |= lanes;
            barrier.waiters.push_back({&warp, lanes, &instr});
        }
        machine.try_release(block, id, barrier);
    }
    return Next::placed;
}

}  // namespace

void Machine::try_release(Block& block, u32, Barrier& barrier) {
    const u32 wanted = barrier.expected != 0 ? barrier.expected : block.live;
    if (barrier.arrived == 0 || barrier.arrived < wanted) return;
    const Barrier full = std::move(barrier);
    barrier = Barrier{};
    for (const Barrier::Waiter& waiter : full.waiters) {
        reduce(*waiter.warp, *waiter.instr, waiter.mask, full);
        waiter.warp->parked &= ~waiter.mask;
        each(waiter.mask, [&](u32 lane) {
            ++waiter.warp->pc[lane];
            thread(*waiter.warp, lane).others = full.known;
            tick(waiter.warp->first_thread + lane);
        });
    }
    changed = steps;
}

void add_barrier_ops() {
    add_handler("bar", bar);
}

}  // namespace ptx
