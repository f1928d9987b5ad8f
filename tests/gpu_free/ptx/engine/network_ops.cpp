// Calls of NVSHMEM. num[0]: whether the last operand names a queue.
#include <cstring>

#include "ops.hpp"

namespace ptx {

namespace {

constexpr u64 kWholeWarp[kLanes] = {kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll,
                                    kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll,
                                    kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll};
enum Operation : int { kAddSignal = 10 };
enum Comparison : int { kEqual, kNotEqual, kGreater, kLessEqual, kLess, kGreaterEqual };

// Of an address in the sender's memory; bounds are checked.
u64 symmetric(Machine& machine, Warp& warp, u32 lane, const Instr& instr, u64 address, u64 bytes) {
    const Network& network = machine.network;
    if (network.heaps.empty()) machine.fault(warp, lane, instr, "NVSHMEM was not started");
    const u64 within = address - kBase - network.heaps[warp.block->launch->gpu];
    if (within > network.bytes || bytes > network.bytes - within)
        machine.fault(warp, lane, instr,
                      std::to_string(bytes) + " bytes at " + machine.memory.name(address - kBase) +
                          " are not in this GPU's symmetric memory");
    return within;
}

Route route(Machine& machine, Warp& warp, u32 lane, const Instr& instr, i32 peer, i64 queue) {
    const Network& network = machine.network;
    const u32 gpu = warp.block->launch->gpu;
    if (peer < 0 || static_cast<u32>(peer) >= network.heaps.size() || static_cast<u32>(peer) == gpu)
        machine.fault(warp, lane, instr, "no peer " + std::to_string(peer));
    if (queue != kAnyQueue &&
        (queue < network.first_queue || queue - network.first_queue >= network.num_queues))
        machine.fault(warp, lane, instr, "no queue " + std::to_string(queue));
    return {gpu, static_cast<u32>(peer), queue};
}

u64 there(Machine& machine, const Route& route, u64 within) {
    return machine.network.heaps[route.peer] + within;
}

void add_signal(
    Machine& machine, Warp& warp, u32 lane, const Instr& instr, Message& message, const u64 (&what)[3]) {
    if (static_cast<i32>(what[2]) != kAddSignal)
        machine.fault(warp, lane, instr, "not the addition of a signal");
    if (what[0] % 8 != 0) machine.fault(warp, lane, instr, "misaligned signal");
    message.word = there(machine, message.route, symmetric(machine, warp, lane, instr, what[0], 8));
    message.value = what[1];
    message.signals = true;
}

// src: to, from, bytes, peer, then a queue; or a word, a value, an operation. By a whole warp; it is said
// nowhere which lane does it, nor that it waits for the others.
Next put(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const u32 lanes = gather(machine, warp, instr, mask, kWholeWarp, false);
    if (lanes == 0) return Next::wait;
    const Sources src(machine, warp, instr);
    if (lanes != kAll) machine.fault(warp, 0, instr, "a warp is not whole");
    for (u32 i = 0; i < instr.num_src; ++i)
        for (u32 lane = 1; lane < kLanes; ++lane)
            if (src.lanes[i][lane] != src.lanes[i][0])
                machine.fault(warp, lane, instr, "lanes of a warp do not mean the same");
    const u32 lane = machine.random.below(kLanes);
    const i64 queue = instr.num[0] != 0 ? src.as<i32>(4, lane) : kAnyQueue;
    Message message{};
    message.route = route(machine, warp, lane, instr, src.as<i32>(3, lane), queue);
    message.text = instr.text;
    const u64 bytes = src.lanes[2][lane];
    message.bytes = static_cast<u32>(bytes);
    message.to =
        there(machine, message.route, symmetric(machine, warp, lane, instr, src.lanes[0][lane], bytes));
    message.from = machine.network.heaps[message.route.gpu] +
                   symmetric(machine, warp, lane, instr, src.lanes[1][lane], bytes);
    if (instr.num[0] == 0)
        add_signal(machine, warp, lane, instr, message,
                   {src.lanes[4][lane], src.lanes[5][lane], src.lanes[6][lane]});
    machine.send(std::move(message), warp.first_thread + lane);
    return done(warp, lanes);
}

// src: word, value, operation, peer, then perhaps a queue. By each lane.
Next add(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    each(mask, [&](u32 lane) {
        const i64 queue = instr.num[0] != 0 ? src.as<i32>(4, lane) : kAnyQueue;
        Message message{};
        message.route = route(machine, warp, lane, instr, src.as<i32>(3, lane), queue);
        message.text = instr.text;
        add_signal(machine, warp, lane, instr, message,
                   {src.lanes[0][lane], src.lanes[1][lane], src.lanes[2][lane]});
        machine.send(std::move(message), warp.first_thread + lane);
    });
    return Next::advance;
}

// src: peer, address of the queues, how many.
Next fence(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    each(mask, [&](u32 lane) {
        if (src.as<i32>(2, lane) != 1) machine.fault(warp, lane, instr, "a fence of other than one queue");
        const u64 at = machine.locate(warp, lane, instr, src.lanes[1][lane], 4, 4);
        i32 queue = 0;
        std::memcpy(&queue, machine.memory.data(at), 4);
        machine.fence_queue(warp.first_thread + lane,
                            route(machine, warp, lane, instr, src.as<i32>(0, lane), queue));
    });
    return Next::advance;
}

bool holds(u64 word, i32 comparison, u64 value) {
    const bool results[] = {word == value, word != value, word > value,
                            word <= value, word < value,  word >= value};
    return results[comparison];
}

// src: word, comparison, value. What came before a signal can be read after a test that was true, and by
// nothing else.
Next test(Machine& machine, Warp& warp, const Instr& instr, u32 mask) {
    const Sources src(machine, warp, instr);
    each(mask, [&](u32 lane) {
        const i32 comparison = src.as<i32>(1, lane);
        if (comparison < kEqual || comparison > kGreaterEqual)
            machine.fault(warp, lane, instr, "no comparison " + std::to_string(comparison));
        const u64 at = machine.locate(warp, lane, instr, src.lanes[0][lane], 8, 8);
        const Actor actor = machine.actor(warp, lane, instr, kSys, 3, false);
        machine.shadow.read(at, 8, actor, false);
        u64 word = 0;
        std::memcpy(&word, machine.memory.data(at), 8);
        const bool is_true = holds(word, comparison, src.lanes[2][lane]);
        const auto found = machine.network.arrived.find(at);
        if (is_true && found != machine.network.arrived.end())
            learn(machine.thread(warp, lane).others, Knowledge{found->second});
        if (instr.num_dst != 0) warp.at(instr.dst[0])[lane] = is_true;
    });
    return Next::advance;
}

}  // namespace

void add_network_ops() {
    add_handler("net.put", put);
    add_handler("net.add", add);
    add_handler("net.fence", fence);
    add_handler("net.test", test);
}

}  // namespace ptx
