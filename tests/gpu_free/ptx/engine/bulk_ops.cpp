// Bulk copies: agents of their own, which read and write late, in pieces, and beside each other. They go
// through the async proxy, so what lanes wrote must have passed a proxy fence.
#include <cstring>

#include "ops.hpp"

namespace ptx {

namespace {

constexpr u32 kUnit = 16;

enum Direction : int { kToGlobal, kToShared };

u64 end_of(Machine& machine, Warp& warp, u32 lane, const Instr& instr, u32 operand, bool shared, u32 bytes) {
    const u64 value =
        machine.value(warp, instr.src[operand])[lane] + static_cast<u64>(instr.num[1 + operand]);
    const u64 offset = machine.locate(warp, lane, instr, machine.generic(warp, shared, value), bytes, kUnit);
    if (shared && !machine.in_shared(warp, offset))
        machine.fault(warp, lane, instr, "shared address outside of the block's shared memory");
    return offset;
}

void check_mbarrier(Machine& machine, Warp& warp, u32 lane, const Instr& instr, u64 offset) {
    const auto found = machine.mbarriers.find(offset);
    if (found == machine.mbarriers.end())
        machine.fault(warp, lane, instr, "no mbarrier was initialised at " + machine.memory.name(offset));
    const Mbarrier& mbarrier = found->second;
    const Actor actor = machine.actor(warp, lane, instr, kAsync, 3, true);
    if (machine.proxy_fenced(actor, mbarrier.init_thread, mbarrier.init_time, kSharedMemory | kMbarrierInit))
        return;
    const Access init{mbarrier.init_thread, kWeak, 3, 1, mbarrier.init_time, mbarrier.init_text};
    machine.race(offset, actor, init, "has no fence.mbarrier_init or fence.proxy.async by that lane before");
}

// num[0]: direction; num[1..3]: added to the addresses. src: to, from, bytes, mbarrier.
Next bulk_copy(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const bool to_shared = instr.num[0] == kToShared;
    each(mask, [&](u32 lane) {
        const u32 bytes = src.as<u32>(2, lane), issuer = warp.first_thread + lane;
        if (bytes == 0 || bytes % kUnit != 0)
            machine.fault(warp, lane, instr, "a bulk copy of " + std::to_string(bytes) + " bytes");
        auto copy = std::make_shared<Copy>();
        copy->to = end_of(machine, warp, lane, instr, 0, to_shared, bytes);
        copy->from = end_of(machine, warp, lane, instr, 1, !to_shared, bytes);
        if (to_shared) {
            const u64 address =
                machine.generic(warp, true, src.lanes[3][lane] + static_cast<u64>(instr.num[3]));
            copy->mbarrier = machine.locate(warp, lane, instr, address, 8, 8);
            check_mbarrier(machine, warp, lane, instr, copy->mbarrier);
        }
        const Thread& self = machine.threads[issuer];
        copy->bytes = bytes;
        copy->issuer = issuer;
        copy->issue_time = self.time;
        copy->issuer_sealed = self.sealed;
        copy->known = self.others;
        copy->text = instr.text;
        copy->block = warp.block;
        copy->launch = warp.block->launch;
        copy->to_shared = to_shared;
        machine.start_copy(copy);
        if (!to_shared) machine.bulk[issuer].open.push_back(copy);
        machine.tick(issuer);
    });
    return Next::advance;
}

Next commit(Machine& machine, Warp& warp, const Instr&, u32 mask) {
    each(mask, [&](u32 lane) {
        BulkGroups& mine = machine.bulk[warp.first_thread + lane];
        mine.groups.push_back(std::exchange(mine.open, {}));
    });
    return Next::advance;
}

// num[0]: groups that may be pending; num[1]: only their sources matter.
Next wait_group(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const bool read_only = instr.num[1] != 0;
    u32 ready = 0;
    each(mask, [&](u32 lane) {
        auto& groups = machine.bulk[warp.first_thread + lane].groups;
        const std::size_t allowed = static_cast<std::size_t>(instr.num[0]);
        const std::size_t wanted = groups.size() > allowed ? groups.size() - allowed : 0;
        for (std::size_t i = 0; i < wanted; ++i)
            for (const auto& copy : groups[i])
                if ((read_only ? copy->read : copy->written) != copy->bytes) return;
        ready |= 1u << lane;
        if (wanted == 0) return;
        Clock& known = machine.thread(warp, lane).others.own();
        for (std::size_t i = 0; i < wanted; ++i)
            for (const auto& copy : groups[i])
                raise_one(known.seen, copy->agent, read_only ? copy->read_time : copy->write_time);
        if (!read_only) groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(wanted));
    });
    each(ready, [&](u32 lane) { ++warp.pc[lane]; });
    return ready == 0 ? Next::retry : Next::placed;
}

// num[0]: what it covers.
Next fence_proxy(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const u32 covered = static_cast<u32>(instr.num[0]);
    ClockRef before, after;
    each(mask, [&](u32 lane) {
        Thread& self = machine.thread(warp, lane);
        self.proxy_fences.push_back({self.time, covered});
        if ((covered & kGlobalMemory) != 0) {
            // All that is known by now is sealed, whoever wrote it. Lanes that share a clock go on sharing
            // it.
            if (self.others.get() != before.get()) {
                before = after = self.others;
                Clock& clock = after.own();
                raise(clock.sealed, clock.seen);
            }
            self.others = after;
            self.sealed = self.time;
        }
        machine.tick(warp.first_thread + lane);
    });
    return Next::advance;
}

}  // namespace

u32 Machine::take_agent() {
    while (free_agents_.empty()) advance_copies(true);
    const u32 agent = free_agents_.front();
    free_agents_.pop_front();
    return agent;
}

void Machine::start_copy(std::shared_ptr<Copy> copy) {
    copy->agent = take_agent();
    Thread& agent = threads[copy->agent];
    agents_issuer_[copy->agent - num_lanes_] = copy->issuer;
    agent.gpu = threads[copy->issuer].gpu;
    copy->read_time = ++agent.time;
    copy->write_time = ++agent.time;
    copy->not_before = steps + random.below(options.copy_delay + 1);
    copy->backwards = random.below(2) != 0;
    copy->data.resize(copy->bytes);
    ++copy->block->copying;
    ++copy->launch->copying;
    copies_.push_back(std::move(copy));
}

bool Machine::advance_copies(bool force) {
    if (copies_.empty()) return false;
    const std::size_t at = random.below(static_cast<u32>(copies_.size()));
    Copy& copy = *copies_[at];
    if (!force && steps < copy.not_before) return true;
    const u32 most = kUnit * (1 + random.below(64));
    changed = steps;
    if (copy.read < copy.bytes) {
        read_piece(copy, std::min(most, copy.bytes - copy.read));
        if (copy.read < copy.bytes) return true;
        copy.not_before = steps + random.below(options.copy_delay + 1);
        if (!copy.to_shared) --copy.block->copying;
        return true;
    }
    write_piece(copy, std::min(most, copy.bytes - copy.written));
    if (copy.written == copy.bytes) land(at);
    return true;
}

Actor Machine::copier(const Copy& copy, bool writes) const {
    const u32 time = writes ? copy.write_time : copy.read_time;
    return {{copy.agent, kAsync, 4, writes, time, copy.text},
            copy.known.get(),
            copy.issuer,
            copy.issue_time,
            copy.issuer_sealed};
}

void Machine::read_piece(Copy& copy, u32 bytes) {
    const u32 at = copy.backwards ? copy.bytes - copy.read - bytes : copy.read;
    shadow.read(copy.from + at, bytes, copier(copy, false), !copy.to_shared);
    std::memcpy(copy.data.data() + at, memory.data(copy.from + at), bytes);
    copy.read += bytes;
}

void Machine::write_piece(Copy& copy, u32 bytes) {
    const u32 at = copy.backwards ? copy.bytes - copy.written - bytes : copy.written;
    shadow.write(copy.to + at, bytes, copier(copy, true), copy.to_shared);
    std::memcpy(memory.data(copy.to + at), copy.data.data() + at, bytes);
    copy.written += bytes;
    if (copy.mbarrier == 0) return;
    const auto found = mbarriers.find(copy.mbarrier);
    if (found == mbarriers.end())
        throw Error{Kind::fault, "a bulk copy of " + describe(copy.issuer, kAll) +
                                     " ends at an mbarrier that is gone: " + program.texts[copy.text]};
    found->second.bytes -= bytes;
    raise_one(found->second.arriving.own().seen, copy.agent, copy.write_time);
    arrive(found->second, 0);
}

void Machine::land(std::size_t at) {
    const std::shared_ptr<Copy> copy = copies_[at];
    Launch& launch = *copy->launch;
    if (copy->to_shared) --copy->block->copying;
    --launch.copying;
    launch.landed.emplace_back(copy->agent, copy->write_time);
    free_agents_.push_back(copy->agent);
    copy->data = {};
    copies_[at] = std::move(copies_.back());
    copies_.pop_back();
}

void add_bulk_ops() {
    add_handler("bulk.copy", bulk_copy);
    add_handler("bulk.commit", commit);
    add_handler("bulk.wait", wait_group);
    add_handler("fence.proxy", fence_proxy);
}

}  // namespace ptx
