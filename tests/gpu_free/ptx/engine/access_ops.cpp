// ld, st, atom, red. num[0]: space; num[1]: order bits; num[2]: strength (Class); num[3]: log2 of the bytes
// of one element; num[4]: type of an element; num[5]: operation, or 1 for .nc; num[6]: added to the address.
#include <cstring>

#include "ops.hpp"

namespace ptx {

namespace {

enum Space : int { kGeneric, kShared };
enum Order : int { kAcquire = 1, kRelease = 2 };
enum Operation : int { kAdd, kExch, kCas, kMin, kMax, kAnd, kOr, kXor, kInc, kDec };
enum Type : int { kSigned = 4, kFloat = 10, kDouble = 11 };

struct Place {
    u64 offset;
    bool shared;
};

Place place(Machine& machine, Warp& warp, u32 lane, const Instr& instr, u64 register_value, u32 bytes) {
    u64 address = register_value + static_cast<u64>(instr.num[6]);
    if (instr.num[0] == kShared) address = machine.generic(warp, true, address);
    const u64 offset = machine.locate(warp, lane, instr, address, bytes, bytes);
    const bool shared = machine.in_shared(warp, offset);
    if (instr.num[0] == kShared && !shared)
        machine.fault(warp, lane, instr, "shared access outside of the block's shared memory");
    return {offset, shared};
}

u64 load_value(const u8* from, u32 log_size, bool is_signed) {
    u64 value = 0;
    std::memcpy(&value, from, std::size_t{1} << log_size);
    if (!is_signed) return value;
    const u32 unused = 64 - (8u << log_size);
    return static_cast<u64>(static_cast<i64>(value << unused) >> unused);
}

// A read-only load must not meet anything that was written while its kernel ran.
void check_read_only(Machine& machine, Warp& warp, const Actor& actor, u64 offset, u32 bytes) {
    const Clock& begin = *warp.block->launch->begin.get();
    for (u64 at = offset; at < offset + bytes; at += bytes < 4 ? 1 : 4) {
        const Access write = machine.shadow.last_write(at);
        if (write.set() && begin.seen[write.thread] < write.time)
            machine.race(at, actor, write, "is a read-only load of what was written during the kernel:");
    }
}

Next ld_param(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 log_size = static_cast<u32>(instr.num[3]);
    const u64 base = warp.block->launch->params;
    each(mask, [&](u32 lane) {
        const u64 from = src.lanes[0][lane] + static_cast<u64>(instr.num[6]);
        for (u32 i = 0; i < instr.num_dst; ++i) {
            const u64 offset =
                machine.locate(warp, lane, instr, base + from + (u64{i} << log_size), 1u << log_size, 1);
            warp.at(instr.dst[i])[lane] = load_value(machine.memory.data(offset), log_size,
                                                     instr.num[4] >= kSigned && instr.num[4] < 8);
        }
    });
    return Next::advance;
}

Next ld(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 cls = static_cast<u32>(instr.num[2]), log_size = static_cast<u32>(instr.num[3]);
    const u32 bytes = static_cast<u32>(instr.num_dst) << log_size;
    const bool is_signed = instr.num[4] >= kSigned && instr.num[4] < 8;
    each(mask, [&](u32 lane) {
        const Place at = place(machine, warp, lane, instr, src.lanes[0][lane], bytes);
        const Actor actor = machine.actor(warp, lane, instr, cls, log_size, false);
        if (at.shared && machine.options.check_uninitialised && !machine.shadow.initialised(at.offset, bytes))
            machine.fault(warp, lane, instr, "read of uninitialised " + machine.memory.name(at.offset));
        if (instr.num[5] != 0) check_read_only(machine, warp, actor, at.offset, bytes);
        machine.shadow.read(at.offset, bytes, actor, at.shared);
        for (u32 i = 0; i < instr.num_dst; ++i) {
            const u64 offset = at.offset + (u64{i} << log_size);
            warp.at(instr.dst[i])[lane] = load_value(machine.memory.data(offset), log_size, is_signed);
            if (cls > kWeak)
                machine.observe(actor.access.thread, offset, cls, (instr.num[1] & kAcquire) != 0);
        }
    });
    return Next::advance;
}

void write(Machine& machine, u64 offset, u64 value, u32 log_size) {
    u8* to = machine.memory.data(offset);
    if (std::memcmp(to, &value, std::size_t{1} << log_size) == 0) return;
    std::memcpy(to, &value, std::size_t{1} << log_size);
    machine.changed = machine.steps;
}

Next st(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 cls = static_cast<u32>(instr.num[2]), log_size = static_cast<u32>(instr.num[3]);
    const u32 elements = instr.num_src - 1u, bytes = elements << log_size;
    each(mask, [&](u32 lane) {
        const Place at = place(machine, warp, lane, instr, src.lanes[0][lane], bytes);
        const Actor actor = machine.actor(warp, lane, instr, cls, log_size, true);
        machine.shadow.write(at.offset, bytes, actor, at.shared);
        for (u32 i = 0; i < elements; ++i) {
            const u64 offset = at.offset + (u64{i} << log_size);
            write(machine, offset, src.lanes[i + 1][lane], log_size);
            if (cls > kWeak)
                machine.publish(actor.access.thread, offset, cls, (instr.num[1] & kRelease) != 0, false);
        }
    });
    return Next::advance;
}

template <class T>
T updated(T old, T a, i64 operation) {
    switch (operation) {
        case kMin:
            return a < old ? a : old;
        case kMax:
            return old < a ? a : old;
        default:
            return old + a;
    }
}

u64 updated_bits(u64 old, u64 a, u64 b, i64 operation, u64 ones) {
    switch (operation) {
        case kExch:
            return a;
        case kCas:
            return old == a ? b : old;
        case kAnd:
            return old & a;
        case kOr:
            return old | a;
        case kXor:
            return old ^ a;
        case kInc:
            return old >= a ? 0 : old + 1;
        default:
            return old == 0 || old > a ? a : (old - 1) & ones;
    }
}

u64 update(u64 old, u64 a, u64 b, const Instr& instr) {
    const i64 operation = instr.num[5];
    const u32 bits = 8u << instr.num[3];
    const u64 ones = bits == 64 ? ~u64{0} : (u64{1} << bits) - 1;
    if (operation != kAdd && operation != kMin && operation != kMax)
        return updated_bits(old, a & ones, b & ones, operation, ones);
    switch (instr.num[4]) {
        case kFloat:
            return put(updated(get<float>(old), get<float>(a), operation));
        case kDouble:
            return put(updated(get<double>(old), get<double>(a), operation));
        case 6:
            return operation == kAdd ? (old + a) & ones : put(updated(get<i32>(old), get<i32>(a), operation));
        case 7:
            return operation == kAdd ? old + a : put(updated(get<i64>(old), get<i64>(a), operation));
        default:
            return updated(old, a & ones, operation) & ones;
    }
}

Next atom(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 cls = static_cast<u32>(instr.num[2]), log_size = static_cast<u32>(instr.num[3]);
    const u32 operands = instr.num[5] == kCas ? 2 : 1, elements = (instr.num_src - 1u) / operands;
    each(mask, [&](u32 lane) {
        const Place at = place(machine, warp, lane, instr, src.lanes[0][lane], elements << log_size);
        for (u32 i = 0; i < elements; ++i) {
            const u64 offset = at.offset + (u64{i} << log_size);
            const Actor actor = machine.actor(warp, lane, instr, cls, log_size, true);
            machine.shadow.write(offset, 1u << log_size, actor, at.shared);
            const u64 old = load_value(machine.memory.data(offset), log_size, false);
            const u64 second = operands == 2 ? src.lanes[2][lane] : 0;
            const u64 made = update(old, src.lanes[1 + i][lane], second, instr);
            machine.observe(actor.access.thread, offset, cls, (instr.num[1] & kAcquire) != 0);
            // A compare-and-swap that fails writes nothing, so it publishes nothing either.
            if (instr.num[5] != kCas ||
                old == (src.lanes[1][lane] & (log_size == 3 ? ~u64{0} : (u64{1} << (8u << log_size)) - 1)))
                machine.publish(actor.access.thread, offset, cls, (instr.num[1] & kRelease) != 0, true);
            write(machine, offset, made, log_size);
            if (i < instr.num_dst) warp.at(instr.dst[i])[lane] = old;
        }
    });
    return Next::advance;
}

// num[0]: the widest scope that the fence covers.
Next fence(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const u32 scope = static_cast<u32>(instr.num[0]);
    each(mask, [&](u32 lane) {
        const u32 id = warp.first_thread + lane;
        Thread& self = machine.threads[id];
        for (u32 i = 0; i <= scope - kCta; ++i) {
            if (self.seen[i].get() != nullptr) learn(self.others, Knowledge{self.seen[i]});
            self.seen[i] = ClockRef{};
            self.fenced[i] = Knowledge{};
        }
        self.fenced[scope - kCta] = machine.knowledge(id);
        machine.tick(id);
    });
    return Next::advance;
}

}  // namespace

void add_access_ops() {
    add_handler("ld.param", ld_param);
    add_handler("ld", ld);
    add_handler("st", st);
    add_handler("atom", atom);
    add_handler("fence", fence);
}

}  // namespace ptx
