// Instructions that lanes of a warp execute together: shfl, vote, match, redux, elect, bar.warp.sync.
#include "ops.hpp"

namespace ptx {

u32 gather(Machine& machine, Warp& warp, const Instr& instr, u32 mask, const u64* members, bool anywhere) {
    for (u32 left = mask; left != 0;) {
        const u32 first = static_cast<u32>(__builtin_ctz(left));
        const u32 wanted = static_cast<u32>(members[first]);
        u32 here = 0;
        each(left, [&](u32 lane) { here |= u32{static_cast<u32>(members[lane]) == wanted} << lane; });
        if ((here & ~wanted) != 0)
            machine.fault(warp, static_cast<u32>(__builtin_ctz(here & ~wanted)), instr,
                          "a lane is not in the mask of its own instruction");
        left &= ~here;
        u32 met = here;
        each(warp.blocked & wanted, [&](u32 lane) {
            const Instr& other = machine.program.code[warp.pc[lane]];
            const bool same = anywhere ? other.run == instr.run : &other == &instr;
            met |= u32{same && warp.mask_of[lane] == wanted} << lane;
        });
        if (met == (wanted & warp.live)) return met;
        each(here, [&](u32 lane) { warp.mask_of[lane] = wanted; });
    }
    warp.blocked |= mask;
    return 0;
}

Next done(Warp& warp, u32 lanes) {
    warp.blocked &= ~lanes;
    each(lanes, [&](u32 lane) { ++warp.pc[lane]; });
    return Next::placed;
}

namespace {

constexpr u64 kGarbage = 0xdeadbeefdeadbeefull;  // what a lane that does not take part gives

enum Mode : int { kUp, kDown, kButterfly, kIndex };

// num[0]: mode. src: value, lane or distance, clamp and segment, members.
Next shfl(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 lanes = gather(machine, warp, instr, mask, src.lanes[3], false);
    if (lanes == 0) return Next::wait;
    u64 result[kLanes];
    u32 valid = 0;
    each(lanes, [&](u32 lane) {
        const u32 by = src.as<u32>(1, lane) & 31, clamp = src.as<u32>(2, lane) & 31;
        const u32 segment = src.as<u32>(2, lane) >> 8 & 31;
        const u32 low = lane & segment, high = low | (clamp & ~segment);
        i32 from = 0;
        bool ok = true;
        switch (instr.num[0]) {
            case kUp:
                from = static_cast<i32>(lane - by), ok = from >= static_cast<i32>(high);
                break;
            case kDown:
                from = static_cast<i32>(lane + by), ok = from <= static_cast<i32>(high);
                break;
            case kButterfly:
                from = static_cast<i32>(lane ^ by), ok = from <= static_cast<i32>(high);
                break;
            default:
                from = static_cast<i32>(low | (by & ~segment)), ok = from <= static_cast<i32>(high);
                break;
        }
        if (!ok) from = static_cast<i32>(lane);
        const bool takes_part = (lanes >> from & 1) != 0;
        result[lane] = static_cast<u32>(takes_part ? src.lanes[0][from] : kGarbage);
        valid |= u32{ok} << lane;
    });
    u64* dst = warp.at(instr.dst[0]);
    each(lanes, [&](u32 lane) { dst[lane] = result[lane]; });
    if (instr.num_dst > 1) put_bits(warp, instr.dst[1], lanes, valid);
    return done(warp, lanes);
}

enum Vote : int { kBallot, kAny, kEvery, kUniform };

// num[0]: what is asked; num[1]: the predicate is negated. src: predicate, members.
Next vote(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 lanes = gather(machine, warp, instr, mask, src.lanes[1], false);
    if (lanes == 0) return Next::wait;
    u32 yes = bits_of(machine, warp, instr.src[0]);
    yes = (instr.num[1] != 0 ? ~yes : yes) & lanes;
    bool answer = false;
    switch (instr.num[0]) {
        case kBallot:
            each(lanes, [&](u32 lane) { warp.at(instr.dst[0])[lane] = yes; });
            return done(warp, lanes);
        case kAny:
            answer = yes != 0;
            break;
        case kEvery:
            answer = yes == lanes;
            break;
        default:
            answer = yes == 0 || yes == lanes;
            break;
    }
    put_bits(warp, instr.dst[0], lanes, answer ? kAll : 0);
    return done(warp, lanes);
}

// num[0]: all lanes must agree; num[1]: 64 bits. src: value, members.
Next match(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 lanes = gather(machine, warp, instr, mask, src.lanes[1], false);
    if (lanes == 0) return Next::wait;
    const auto value = [&](u32 lane) {
        return instr.num[1] != 0 ? src.lanes[0][lane] : u64{src.as<u32>(0, lane)};
    };
    u32 equal[kLanes];
    bool all = true;
    each(lanes, [&](u32 lane) {
        equal[lane] = 0;
        each(lanes, [&](u32 other) { equal[lane] |= u32{value(other) == value(lane)} << other; });
        all = all && equal[lane] == lanes;
    });
    u64* dst = warp.at(instr.dst[0]);
    each(lanes, [&](u32 lane) { dst[lane] = instr.num[0] == 0 || all ? equal[lane] : 0; });
    if (instr.num_dst > 1) put_bits(warp, instr.dst[1], lanes, all ? kAll : 0);
    return done(warp, lanes);
}

enum Reduction : int { kSum, kMin, kMax, kAnd, kOr, kXor, kSignedMin, kSignedMax };

u32 reduce(u32 a, u32 b, i64 how) {
    switch (how) {
        case kSum:
            return a + b;
        case kMin:
            return std::min(a, b);
        case kMax:
            return std::max(a, b);
        case kAnd:
            return a & b;
        case kOr:
            return a | b;
        case kXor:
            return a ^ b;
        case kSignedMin:
            return static_cast<i32>(a) < static_cast<i32>(b) ? a : b;
        default:
            return static_cast<i32>(a) < static_cast<i32>(b) ? b : a;
    }
}

// num[0]: how. src: value, members.
Next redux(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 lanes = gather(machine, warp, instr, mask, src.lanes[1], false);
    if (lanes == 0) return Next::wait;
    const u32 first = static_cast<u32>(__builtin_ctz(lanes));
    u32 result = src.as<u32>(0, first);
    each(lanes & (lanes - 1), [&](u32 lane) { result = reduce(result, src.as<u32>(0, lane), instr.num[0]); });
    each(lanes, [&](u32 lane) { warp.at(instr.dst[0])[lane] = result; });
    return done(warp, lanes);
}

// dst: the elected lane, whether it is this one. src: members.
Next elect(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 lanes = gather(machine, warp, instr, mask, src.lanes[0], false);
    if (lanes == 0) return Next::wait;
    // Any lane may be elected; a random one, so that nobody relies on the first.
    u32 chosen = lanes;
    for (u32 skip = machine.random.below(static_cast<u32>(__builtin_popcount(lanes))); skip != 0; --skip)
        chosen &= chosen - 1;
    const u32 lane_chosen = static_cast<u32>(__builtin_ctz(chosen));
    each(lanes, [&](u32 lane) { warp.at(instr.dst[0])[lane] = lane_chosen; });
    put_bits(warp, instr.dst[1], lanes, 1u << lane_chosen);
    return done(warp, lanes);
}

Next warp_barrier(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    const u32 lanes = gather(machine, warp, instr, mask, src.lanes[0], true);
    if (lanes == 0) return Next::wait;
    machine.meet(warp, lanes);
    return done(warp, lanes);
}

Next active_mask(Machine&, Warp& warp, const Instr& instr, u32 mask) {
    each(mask, [&](u32 lane) { warp.at(instr.dst[0])[lane] = mask; });
    return Next::advance;
}

}  // namespace

void add_warp_ops() {
    add_handler("shfl", shfl);
    add_handler("vote", vote);
    add_handler("match", match);
    add_handler("redux", redux);
    add_handler("elect", elect);
    add_handler("bar.warp", warp_barrier);
    add_handler("activemask", active_mask);
}

}  // namespace ptx
