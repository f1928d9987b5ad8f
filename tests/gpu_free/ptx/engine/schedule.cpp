// Who goes next: a random stream, a random warp of it, and mostly the same lanes for a while.
#include "machine.hpp"

namespace ptx {

namespace {

constexpr u32 kAgents = 256;  // bulk copies in flight at a time
constexpr u32 kTurn = 48;     // steps at most before another warp is chosen

}  // namespace

void Machine::enqueue(std::unique_ptr<Launch> launch) {
    Stream& stream = streams_[{launch->gpu, launch->stream}];
    stream.gpu = launch->gpu;
    stream.id = launch->stream;
    launch->serial = next_serial_++;
    const u32 threads_in = launch->block[0] * launch->block[1] * launch->block[2];
    launch->threads_per_block = (threads_in + kLanes - 1) / kLanes * kLanes;
    launch->num_blocks = launch->grid[0] * launch->grid[1] * launch->grid[2];
    stream.queue.push_back(std::move(launch));
}

// Numbers the threads. Launches of a stream follow each other, so they share numbers.
void Machine::prepare() {
    u32 total = 0;
    active_.clear();
    for (auto& [key, stream] : streams_) {
        stream.first_thread = total;
        stream.num_threads = 0;
        stream.past.clear();
        for (const auto& launch : stream.queue)
            stream.num_threads = std::max(stream.num_threads, launch->num_blocks * launch->threads_per_block);
        total += stream.num_threads;
        if (!stream.queue.empty()) active_.push_back(&stream);
    }
    num_lanes_ = total;
    total = (total + kAgents + 15) / 16 * 16;
    threads.assign(total, Thread{});
    shadow.threads = total;
    shadow.next_run();
    agents_issuer_.assign(total - num_lanes_, 0);
    free_agents_.clear();
    for (u32 agent = num_lanes_; agent < total; ++agent) free_agents_.push_back(agent);
    bulk.clear();
    network.begin_run();
    for (Stream* stream : active_) {
        stream->known = ClockRef(total);
        stream->time = 1;
    }
}

u64 Machine::run(u64 max_steps) {
    prepare();
    const u64 before = steps;
    changed = steps;
    std::vector<Stream*> waiting = active_;
    for (Stream* stream : waiting) begin_next(*stream);
    while (!active_.empty()) {
        Stream& stream = *active_[random.below(static_cast<u32>(active_.size()))];
        bool moved = turn(stream);
        if (!moved)
            for (Stream* other : std::vector<Stream*>(active_)) moved = moved || turn(*other);
        if (!moved && !advance_copies(true) && !advance_network(true)) hang("no lane can go on");
        if (steps - changed > options.hang_steps) hang("lanes go on, but nothing in memory changes");
        if (steps - before > max_steps) hang("more steps than allowed");
    }
    // What is on its way lands, though nobody waits for it.
    while (advance_network(true)) {
    }
    return steps - before;
}

// Starts the stream's next launch; false: it has none.
bool Machine::begin_next(Stream& stream) {
    stream.active = !stream.queue.empty();
    if (!stream.active) {
        std::erase(active_, &stream);
        return false;
    }
    Launch& launch = *stream.queue.front();
    launch.first_thread = stream.first_thread;
    launch.begin = stream.known;
    launch.begin_time = stream.time;
    fill(launch);
    return true;
}

void Machine::fill(Launch& launch) {
    const u32 limit = options.resident_blocks == 0 ? launch.num_blocks : options.resident_blocks;
    while (launch.resident.size() < limit && launch.next_block < launch.num_blocks) begin_block(launch);
}

// Shared memory starts with a pattern that is no sensible value, and as never written.
void Machine::give_shared(Launch& launch, Block& block) {
    const u64 bytes = launch.entry->static_shared + launch.shared_bytes;
    if (bytes == 0) return;
    const std::string name = "shared of " + launch.entry->name + " block" + std::to_string(block.index);
    block.shared_alloc = memory.take_again(bytes, name, static_cast<int>(launch.gpu));
    if (block.shared_alloc == 0) throw Error{Kind::fault, "no memory left for " + name};
    Allocation& allocation = memory[block.shared_alloc];
    allocation.shared = true;
    allocation.block = &block;
    block.shared_begin = allocation.begin;
    block.shared_end = allocation.end;
    std::fill(memory.data(allocation.begin), memory.data(allocation.end), u8{0xcd});
    shadow.forget(allocation.begin, bytes);
}

void Machine::begin_block(Launch& launch) {
    auto block = std::make_unique<Block>();
    const u32 index = launch.next_block++;
    block->launch = &launch;
    block->index = index;
    block->id[0] = index % launch.grid[0];
    block->id[1] = index / launch.grid[0] % launch.grid[1];
    block->id[2] = index / launch.grid[0] / launch.grid[1];
    give_shared(launch, *block);
    block->shared_window = kBase + block->shared_begin - kSharedStart;
    const u32 threads_in = launch.block[0] * launch.block[1] * launch.block[2];
    const u32 number = ++next_block_number_;
    block->warps.resize(launch.threads_per_block / kLanes);
    for (u32 w = 0; w < block->warps.size(); ++w) {
        Warp& warp = block->warps[w];
        warp.block = block.get();
        warp.index = w;
        warp.first_thread = launch.first_thread + index * launch.threads_per_block + w * kLanes;
        warp.live = threads_in - w * kLanes >= kLanes ? kAll : (1u << (threads_in - w * kLanes)) - 1;
        warp.registers.assign(static_cast<std::size_t>(launch.entry->num_registers) * kLanes, 0);
        for (u32 lane = 0; lane < kLanes; ++lane) {
            warp.pc[lane] = launch.entry->start;
            Thread& self = thread(warp, lane);
            self = Thread{};
            bulk.erase(warp.first_thread + lane);  // of the launch before
            self.others = launch.begin;
            self.time = launch.begin_time;
            self.block = number;
            self.gpu = launch.gpu;
        }
    }
    block->live = threads_in;
    launch.resident.push_back(std::move(block));
}

void Machine::exit(Warp& warp, u32 mask) {
    warp.live &= ~mask;
    warp.blocked = 0;  // they look again for whom they wait
    Block& block = *warp.block;
    block.live -= static_cast<u32>(__builtin_popcount(mask));
    changed = steps;
    if (block.live == 0) return;
    for (auto& [id, barrier] : block.barriers) try_release(block, id, barrier);
}

void Machine::end_block(Launch& launch, u32 at) {
    Block& block = *launch.resident[at];
    if (block.copying != 0)
        throw Error{Kind::race, "a block of " + launch.entry->name + " on gpu" + std::to_string(launch.gpu) +
                                    " exits while bulk copies still use its shared memory (block" +
                                    std::to_string(block.index) + ")"};
    if (block.shared_alloc != 0) {
        std::erase_if(mbarriers, [&](const auto& item) {
            return item.first >= block.shared_begin && item.first < block.shared_end;
        });
        memory[block.shared_alloc].block = nullptr;
        memory.give_back(block.shared_alloc);
    }
    launch.resident.erase(launch.resident.begin() + at);
    fill(launch);
}

void Machine::end_launch(Stream& stream) {
    Launch& launch = *stream.queue.front();
    const u32 end = launch.first_thread + launch.num_blocks * launch.threads_per_block;
    const Clock* last = nullptr;
    for (u32 id = launch.first_thread; id < end; ++id) {
        Thread& self = threads[id];
        Knowledge told = knowledge(id);
        if (self.others.get() == last) told.others = stream.known;
        last = self.others.get();
        learn(stream.known, told);
        stream.time = std::max(stream.time, self.time + 1);
    }
    Clock& all = stream.known.own();
    for (const auto& [agent, time] : launch.landed) raise_one(all.seen, agent, time);
    // What a finished kernel wrote needs no proxy fence.
    all.sealed = all.seen;
    stream.past.push_back(std::move(stream.queue.front()));
    stream.queue.pop_front();
    changed = steps;
    begin_next(stream);
}

// Lets one warp of a stream go on for a while; false: none of it can.
bool Machine::turn(Stream& stream) {
    if (!stream.active) return false;
    Launch& launch = *stream.queue.front();
    Warp* warp = choose_warp(launch);
    if (warp == nullptr) {
        if (!launch.resident.empty() || launch.copying != 0) return false;
        end_launch(stream);
        return true;
    }
    bool moved = false;
    for (u32 left = 1 + random.below(kTurn); left != 0 && warp->runnable(); --left) {
        if ((steps & 15) == 0) advance_copies(false);
        if ((steps & 15) == 8) advance_network(false);
        const u64 before = moves_;
        const bool more = step(*warp);
        moved = moved || moves_ != before;
        if (!more) break;
    }
    Block* block = warp->block;
    if (block->live != 0) return moved;
    for (u32 at = 0; at < launch.resident.size(); ++at)
        if (launch.resident[at].get() == block) {
            end_block(launch, at);
            break;
        }
    return true;
}

Warp* Machine::choose_warp(Launch& launch) {
    const u32 blocks = static_cast<u32>(launch.resident.size());
    if (blocks == 0) return nullptr;
    const u32 first = random.below(blocks);
    for (u32 b = 0; b < blocks; ++b) {
        Block& block = *launch.resident[(first + b) % blocks];
        const u32 warps = static_cast<u32>(block.warps.size());
        const u32 from = random.below(warps);
        for (u32 w = 0; w < warps; ++w) {
            Warp& warp = block.warps[(from + w) % warps];
            if (warp.runnable()) return &warp;
        }
    }
    return nullptr;
}

// The lanes that lag behind go first, so that they meet the others again; sometimes anybody does.
u32 Machine::choose_lanes(const Warp& warp) {
    const u32 ready = warp.live & ~warp.blocked & ~warp.parked;
    u32 pc = warp.pc[__builtin_ctz(ready)];
    const u32 dice = random.next();
    if ((dice & 7) == 0) {
        u32 skip = random.below(kLanes);
        const u32 turned = ready >> skip | (skip != 0 ? ready << (kLanes - skip) : 0);
        pc = warp.pc[(static_cast<u32>(__builtin_ctz(turned)) + skip) % kLanes];
    } else {
        each(ready, [&](u32 lane) { pc = std::min(pc, warp.pc[lane]); });
    }
    u32 group = 0;
    each(ready, [&](u32 lane) { group |= u32{warp.pc[lane] == pc} << lane; });
    if (options.split_one_in == 0 || random.below(options.split_one_in) != 0) return group;
    const u32 part = group & random.next();
    return part != 0 ? part : group;
}

// Executes one instruction for some lanes of a warp; false: let others go on.
bool Machine::step(Warp& warp) {
    const u32 group = choose_lanes(warp);
    const u32 pc = warp.pc[__builtin_ctz(group)];
    const Instr& instr = program.code[pc];
    u32 mask = group;
    if (instr.guard >= 0) {
        const u32 condition = static_cast<u32>(warp.at(instr.guard)[0]);
        mask &= instr.negated ? ~condition : condition;
    }
    each(group & ~mask, [&](u32 lane) { ++warp.pc[lane]; });
    ++steps;
    if (mask == 0) {
        ++moves_;
        return true;
    }
    const Next next = instr.run(*this, warp, instr, mask);
    if (next == Next::advance || next == Next::yield) each(mask, [&](u32 lane) { warp.pc[lane] = pc + 1; });
    moves_ += next != Next::retry;
    return next != Next::retry && next != Next::yield && warp.runnable();
}

void Machine::hang(const char* why) const {
    std::string text = std::string(why) + "; ";
    u32 told = 0;
    for (const Stream* stream : active_)
        for (const auto& block : stream->queue.front()->resident)
            for (const Warp& warp : block->warps)
                for (u32 lane = 0; lane < kLanes && told < 8; ++lane) {
                    if ((warp.live >> lane & 1) == 0) continue;
                    if (lane != 0 && (warp.live >> (lane - 1) & 1) && warp.pc[lane] == warp.pc[lane - 1])
                        continue;
                    text += describe(warp.first_thread + lane, kAll) + " of " +
                            stream->queue.front()->entry->name +
                            " at: " + program.texts[program.code[warp.pc[lane]].text] + "; ";
                    ++told;
                }
    throw Error{Kind::hang, text};
}

}  // namespace ptx
