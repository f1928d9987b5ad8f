// How messages land.
#include <cstring>

#include "machine.hpp"

namespace ptx {

namespace {

bool knows(const Machine& machine, u32 thread, u32 other, u32 time) {
    return thread == other || machine.threads[thread].others->seen[other] >= time;
}

}  // namespace

// A few are so late that what was sent long after them is there before.
u64 Machine::late() {
    constexpr u32 kFew = 8, kLate = 30;
    return random.below(options.network_delay + 1) * (random.below(kFew) == 0 ? u64{kLate} : 1);
}

void Machine::send(Message message, u32 thread) {
    const Thread& self = threads[thread];
    message.issuer = thread;
    message.issue_time = self.time;
    message.issuer_sealed = self.sealed;
    message.known = self.others;
    message.number = network.past.size();
    message.not_before = steps + late();
    message.data.resize(message.bytes);
    for (const QueueFence& fence : network.fences) {
        if (fence.route != message.route || !knows(*this, thread, fence.thread, fence.time)) continue;
        message.after.insert(message.after.end(), fence.covered.begin(), fence.covered.end());
    }
    network.past.push_back({message.route, thread, self.time, 0, 0, false});
    network.wire.push_back(std::move(message));
    tick(thread);
}

void Machine::fence_queue(u32 thread, const Route& route) {
    QueueFence fence{route, thread, threads[thread].time, {}};
    for (u64 number = 0; number < network.past.size(); ++number) {
        const Network::Past& sent = network.past[number];
        if (sent.route == route && knows(*this, thread, sent.issuer, sent.issue_time))
            fence.covered.push_back(number);
    }
    network.fences.push_back(std::move(fence));
    tick(thread);
}

// False: something else comes first.
bool Machine::begin_landing(Message& message) {
    if (message.agent != 0) return true;
    for (const u64 number : message.after)
        if (!network.past[number].landed) return false;
    if (free_agents_.empty()) return false;
    Clock& known = message.known.own();
    for (const u64 number : message.after)
        raise_one(known.seen, network.past[number].agent, network.past[number].write_time);
    message.agent = free_agents_.front();
    free_agents_.pop_front();
    Thread& agent = threads[message.agent];
    agents_issuer_[message.agent - num_lanes_] = message.issuer;
    agent.gpu = threads[message.issuer].gpu;
    message.read_time = ++agent.time;
    message.write_time = ++agent.time;
    return true;
}

Actor Machine::lander(const Message& message, u32 cls, bool writes) const {
    const u32 time = writes ? message.write_time : message.read_time;
    return {{message.agent, cls, cls == kSys ? 3u : 0u, writes, time, message.text},
            message.known.get(),
            message.issuer,
            message.issue_time,
            message.issuer_sealed};
}

// Reads a piece, or writes one.
void Machine::land_piece(Message& message) {
    const bool reads = message.read < message.bytes;
    u32& done = reads ? message.read : message.written;
    const u32 piece = std::min(message.bytes - done, 16 * (1 + random.below(64)));
    // From the end: the last byte says nothing of the first.
    const u32 at = message.bytes - done - piece;
    done += piece;
    if (reads) {
        shadow.read(message.from + at, piece, lander(message, kWeak, false), false);
        std::memcpy(message.data.data() + at, memory.data(message.from + at), piece);
        return;
    }
    shadow.write(message.to + at, piece, lander(message, kWeak, true), false);
    std::memcpy(memory.data(message.to + at), message.data.data() + at, piece);
}

void Machine::land_signal(Message& message) {
    shadow.write(message.word, 8, lander(message, kSys, true), false);
    u64 word = 0;
    std::memcpy(&word, memory.data(message.word), 8);
    word += message.value;
    std::memcpy(memory.data(message.word), &word, 8);
    ClockRef& arrived = network.arrived[message.word];
    if (arrived.get() == nullptr) arrived = ClockRef(static_cast<u32>(threads.size()));
    learn(arrived, {message.known, message.agent, message.write_time, 0});
    raise_one(arrived.own().seen, message.issuer, message.issue_time);
}

bool Machine::advance_network(bool force) {
    const u32 count = static_cast<u32>(network.wire.size());
    if (count == 0) return false;
    const u32 from = random.below(count);
    for (u32 i = 0; i < count; ++i) {
        const u32 at = (from + i) % count;
        Message& message = network.wire[at];
        if (!force && steps < message.not_before) continue;
        if (!begin_landing(message)) continue;
        changed = steps;
        if (message.read < message.bytes || message.written < message.bytes) {
            land_piece(message);
            if (message.read == message.bytes && message.written == 0) message.not_before = steps + late();
        }
        if (message.read < message.bytes || message.written < message.bytes) return true;
        if (message.signals) land_signal(message);
        Network::Past& past = network.past[message.number];
        past.agent = message.agent;
        past.write_time = message.write_time;
        past.landed = true;
        free_agents_.push_back(message.agent);
        network.wire[at] = std::move(network.wire.back());
        network.wire.pop_back();
        return true;
    }
    return !force;
}

}  // namespace ptx
