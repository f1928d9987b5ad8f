// What the machine knows of its threads: who covers whom, what an address is, how to name things.
#include "machine.hpp"

#include <cstdio>

namespace ptx {

Machine::Machine(Program program_, u32 num_gpus_, u64 seed, u64 bytes)
    : program(std::move(program_)), memory(bytes), shadow(bytes, *this), random(seed), num_gpus(num_gpus_) {}

bool Machine::covers(u32 cls, u32 thread, u32 other) const {
    if (cls == kSys) return true;
    if (cls == kGpu) return threads[thread].gpu == threads[other].gpu;
    return threads[thread].block == threads[other].block;
}

bool Machine::proxy_fenced(const Actor& actor, u32 thread, u32 time, u32 covered) const {
    const auto& fences = threads[thread].proxy_fences;
    auto at =
        std::lower_bound(fences.begin(), fences.end(), time,
                         [](const Thread::ProxyFence& fence, u32 wanted) { return fence.time < wanted; });
    while (at != fences.end() && (at->covers & covered) == 0) ++at;
    return at != fences.end() && actor.knows(thread, at->time);
}

bool Machine::fenced(const Actor& actor, u32 thread, u32 time) const {
    return proxy_fenced(actor, thread, time, kSharedMemory);
}

Actor Machine::actor(
    const Warp& warp, u32 lane, const Instr& instr, u32 cls, u32 log_size, bool writes) const {
    const u32 id = warp.first_thread + lane;
    const Thread& self = threads[id];
    return {
        {id, cls, log_size, writes, self.time, instr.text}, self.others.get(), id, self.time, self.sealed};
}

Knowledge Machine::knowledge(u32 thread) const {
    const Thread& self = threads[thread];
    return {self.others, thread, self.time, self.sealed};
}

std::string Machine::describe(u32 thread, u32 time) const {
    std::string copy;
    if (thread >= num_lanes_) {
        thread = agents_issuer_[thread - num_lanes_];
        copy = "a bulk copy of ";
        time = kAll;
    }
    for (const auto& [key, stream] : streams_) {
        if (thread - stream.first_thread >= stream.num_threads) continue;
        const Launch* launch = nullptr;
        for (const auto& past : stream.past)
            if (past->begin_time <= time) launch = past.get();
        if (!stream.queue.empty() && stream.active && stream.queue.front()->begin_time <= time)
            launch = stream.queue.front().get();
        if (launch == nullptr) break;
        const u32 within = thread - stream.first_thread;
        const u32 lane = within % launch->threads_per_block;
        return copy + "gpu" + std::to_string(stream.gpu) + " block" +
               std::to_string(within / launch->threads_per_block) + " warp" + std::to_string(lane / kLanes) +
               " lane" + std::to_string(lane % kLanes);
    }
    return copy + "thread " + std::to_string(thread);
}

void Machine::race(u64 offset, const Actor& actor, const Access& other, const char* why) const {
    std::string text = actor.access.writes ? "write" : "read";
    text += " of " + memory.name(offset) + " by " + describe(actor.access.thread, kAll) + " (" +
            program.texts[actor.access.text] + ") ";
    const std::string theirs = describe(other.thread, other.time) + "'s " +
                               (other.writes ? "write (" : "read (") + program.texts[other.text] + ")";
    // A missing fence is the fault of the old access.
    if (std::string(why).find("fence") == std::string::npos)
        throw Error{Kind::race, text + why + " " + theirs};
    throw Error{Kind::race, theirs + " of " + memory.name(offset) + " " + why + " the " + text};
}

void Machine::fault(const Warp& warp, u32 lane, const Instr& instr, const std::string& why) const {
    throw Error{Kind::fault, why + " by " + describe(warp.first_thread + lane, kAll) + " in " +
                                 warp.block->launch->entry->name + ": " + program.texts[instr.text]};
}

u64 Machine::locate(const Warp& warp, u32 lane, const Instr& instr, u64 address, u32 bytes, u32 align) {
    const u64 offset = address - kBase;
    const u32 found = memory.find(offset);
    if (found == 0) fault(warp, lane, instr, "access outside of every allocation (" + nearest(address) + ")");
    const Allocation& allocation = memory[found];
    if (offset + bytes > allocation.end)
        fault(warp, lane, instr,
              "access of " + std::to_string(bytes) + " bytes over the end of " + memory.name(offset));
    if (allocation.shared && allocation.block != warp.block)
        fault(warp, lane, instr, "access to another block's " + memory.name(offset));
    if ((address & (align - 1)) != 0)
        fault(warp, lane, instr,
              "misaligned access to " + memory.name(offset) + ", not a multiple of " + std::to_string(align));
    return offset;
}

// Names an address that is nowhere by what lies before it.
std::string Machine::nearest(u64 address) const {
    char number[32];
    std::snprintf(number, sizeof number, "0x%llx", static_cast<unsigned long long>(address));
    std::string text = number;
    const u32 before = address > kBase ? memory.before(address - kBase) : 0;
    if (before == 0) return text;
    const Allocation& allocation = memory[before];
    return text + ", " + std::to_string(address - kBase - allocation.begin) + " bytes after the start of " +
           memory.name(allocation.begin) + ", which has " + std::to_string(allocation.end - allocation.begin);
}

void Machine::meet(Warp& warp, u32 mask) {
    ClockRef all = threads[warp.first_thread + static_cast<u32>(__builtin_ctz(mask))].others;
    const Clock* last = all.get();
    each(mask, [&](u32 lane) {
        const Thread& self = thread(warp, lane);
        Knowledge told = knowledge(warp.first_thread + lane);
        if (self.others.get() == last) told.others = all;
        last = self.others.get();
        learn(all, told);
    });
    each(mask, [&](u32 lane) {
        thread(warp, lane).others = all;
        tick(warp.first_thread + lane);
    });
}

void Machine::arrive(Mbarrier& mbarrier, u32 count) {
    mbarrier.pending -= count;
    if (mbarrier.pending != 0 || mbarrier.bytes != 0) return;
    ++mbarrier.phase;
    mbarrier.pending = mbarrier.expected;
    mbarrier.completed = mbarrier.arriving;
    changed = steps;
}

}  // namespace ptx
