// The machine: GPUs that execute launches block by block, warp by warp, in a random order.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory.hpp"
#include "network.hpp"
#include "shadow.hpp"

namespace ptx {

struct Instr;
struct Warp;
class Machine;

// What becomes of the lanes that executed an instruction.
enum class Next : u8 {
    advance,  // to the next instruction
    placed,   // the handler has set their program counters
    wait,     // for other lanes of the warp, or for a barrier
    retry,    // stay, and let others go on
    yield,    // next instruction, but let others go on first
};

using Handler = Next (*)(Machine&, Warp&, const Instr&, u32 mask);

struct Instr {
    Handler run;
    i32 guard;  // predicate register, or -1
    bool negated;
    u32 target, text;
    u8 num_dst, num_src;
    i32 dst[4];
    i32 src[8];  // negative: a constant
    i64 num[7];  // modifiers, as decode.py writes them for this kind of instruction
};

// Finds what executes an instruction by its name; null: nothing does.
Handler find_handler(const std::string& name);
void add_handler(const std::string& name, Handler handler);

struct Entry {
    u32 start, num_registers, static_shared;
    std::string name;
};

struct Program {
    std::vector<Instr> code;
    std::vector<std::array<u64, kLanes>> constants;
    std::vector<std::string> texts;
    std::vector<Entry> entries;
    std::vector<u32> tables;  // targets of brx.idx
};

struct Block;

struct Warp {
    Block* block;
    u32 index, first_thread;
    u32 live = 0;     // lanes that have not exited
    u32 blocked = 0;  // of them: waiting for lanes of the warp
    u32 parked = 0;   // of them: waiting at a barrier of the block
    u32 carry = 0;    // the condition code register
    u32 pc[kLanes] = {};
    u32 mask_of[kLanes] = {};  // of blocked lanes: whom they wait for
    std::vector<u64> registers;

    u64* at(i32 slot) { return registers.data() + static_cast<std::size_t>(slot) * kLanes; }
    bool runnable() const { return (live & ~blocked & ~parked) != 0; }
};

struct Barrier {
    u32 expected = 0, arrived = 0;  // threads; expected 0: all that have not exited
    bool open = false;
    u32 any = 0, votes = 0;  // of bar.red
    ClockRef known;
    struct Waiter {
        Warp* warp;
        u32 mask;
        const Instr* instr;
    };
    std::vector<Waiter> waiters;
};

struct Mbarrier {
    u32 expected = 0, pending = 0;
    i64 bytes = 0;
    u64 phase = 0;
    u32 init_thread = 0, init_time = 0, init_text = 0;
    ClockRef arriving, completed;
};

struct Launch;

struct Block {
    Launch* launch;
    u32 index, id[3];
    u32 shared_alloc = 0;
    u64 shared_window = 0;  // what a shared address is added to
    u64 shared_begin = 0, shared_end = 0;
    u32 live = 0;     // lanes
    u32 copying = 0;  // bulk copies that still read or write its shared memory
    std::map<u32, Barrier> barriers;
    std::vector<Warp> warps;
};

struct Launch {
    const Entry* entry;
    u32 gpu, stream, serial;
    u32 grid[3], block[3], shared_bytes;
    u64 params;
    u32 first_thread = 0, threads_per_block = 0, num_blocks = 0;
    u32 next_block = 0, copying = 0;
    u32 begin_time = 0;                       // of all its threads
    std::vector<std::pair<u32, u32>> landed;  // bulk copies that are done: agent, time
    ClockRef begin;
    std::vector<std::unique_ptr<Block>> resident;
};

struct Stream {
    u32 gpu, id;
    u32 first_thread = 0, num_threads = 0;
    u32 time = 1;
    ClockRef known;
    std::deque<std::unique_ptr<Launch>> queue;
    std::vector<std::unique_ptr<Launch>> past;  // of this run, for messages
    bool active = false;
};

// What a proxy fence covers.
enum Covered : u32 { kSharedMemory = 1, kGlobalMemory = 2, kMbarrierInit = 4 };

// A lane's part in the memory model.
struct Thread {
    ClockRef others;
    u32 time = 1;
    u32 sealed = 0;
    u32 block = 0;  // unique number of its block
    u32 gpu = 0;
    Knowledge fenced[3];  // by scope: what the last release fence published
    ClockRef seen[3];     // by scope: what an acquire fence of that scope would make known
    struct ProxyFence {
        u32 time, covers;
    };
    std::vector<ProxyFence> proxy_fences;
};

struct Copy {
    u64 to, from;  // offsets
    u32 bytes, issuer, agent;
    u32 read = 0, written = 0;
    u32 read_time, write_time, issue_time, issuer_sealed;
    u32 text;
    u64 mbarrier = 0;  // offset of the one to tell; 0: a bulk group
    u64 not_before = 0;
    ClockRef known;
    Block* block;  // may be gone once its shared memory is not used any more
    Launch* launch;
    std::vector<u8> data;
    bool to_shared, backwards;
};

struct BulkGroups {
    std::vector<std::shared_ptr<Copy>> open;
    std::deque<std::vector<std::shared_ptr<Copy>>> groups;
};

struct Options {
    u64 ns_per_step = 100;
    u64 start_ns = 1'000'000'000;
    u64 hang_steps = 1'000'000;
    u32 resident_blocks = 0;  // 0: all
    u32 split_one_in = 256;   // how often lanes that run together part; 0: never
    bool check_uninitialised = true;
    u32 copy_delay = 400;      // steps that a bulk copy may be late
    u32 network_delay = 3000;  // and most messages
};

class Machine final : public World {
   public:
    Machine(Program program, u32 num_gpus, u64 seed, u64 bytes);

    void enqueue(std::unique_ptr<Launch> launch);
    u64 run(u64 max_steps);

    bool covers(u32 cls, u32 thread, u32 other) const override;
    bool fenced(const Actor& actor, u32 thread, u32 time) const override;
    [[noreturn]] void race(u64 offset,
                           const Actor& actor,
                           const Access& other,
                           const char* why) const override;
    [[noreturn]] void fault(const Warp& warp, u32 lane, const Instr& instr, const std::string& why) const;
    std::string describe(u32 thread, u32 time) const;

    const u64* value(Warp& warp, i32 operand) const {
        return operand >= 0 ? warp.at(operand) : program.constants[static_cast<std::size_t>(~operand)].data();
    }
    Thread& thread(const Warp& warp, u32 lane) { return threads[warp.first_thread + lane]; }
    Actor actor(const Warp& warp, u32 lane, const Instr& instr, u32 cls, u32 log_size, bool writes) const;
    Knowledge knowledge(u32 thread) const;
    // A time of its own for what a thread does from now on.
    void tick(u32 thread) { ++threads[thread].time; }

    // Where an address is; checks that it is memory that this warp may access.
    u64 locate(const Warp& warp, u32 lane, const Instr& instr, u64 address, u32 bytes, u32 align);
    bool in_shared(const Warp& warp, u64 offset) const {
        return offset >= warp.block->shared_begin && offset < warp.block->shared_end;
    }
    u64 generic(const Warp& warp, bool shared, u64 address) const {
        return shared ? warp.block->shared_window + static_cast<u32>(address) : address;
    }

    void exit(Warp& warp, u32 mask);
    void try_release(Block& block, u32 id, Barrier& barrier);
    void meet(Warp& warp, u32 mask);  // bar.warp.sync: all lanes know what each did

    // The release and acquire of one lane at a word that it accesses strongly.
    void publish(u32 thread, u64 offset, u32 cls, bool release, bool update);
    void observe(u32 thread, u64 offset, u32 cls, bool acquire);
    bool proxy_fenced(const Actor& actor, u32 thread, u32 time, u32 covered) const;

    void start_copy(std::shared_ptr<Copy> copy);
    // Moves a piece of one bulk copy; false: there is none. Forced: even if it would be late on its own.
    bool advance_copies(bool force);
    void arrive(Mbarrier& mbarrier, u32 count);

    // network.cpp. A message on its way: from now on it may land, whatever its sender does.
    void send(Message message, u32 thread);
    // What the thread knows to have been sent by then lands before what goes into that queue afterwards.
    void fence_queue(u32 thread, const Route& route);
    // Lets some of a message land; false: there is none. Forced: even if it would be late on its own.
    bool advance_network(bool force);

    Program program;
    Memory memory;
    Shadow shadow;
    Options options;
    Random random;
    u32 num_gpus;
    u64 steps = 0, changed = 0;  // `changed`: the step that last changed anything others can see
    std::vector<Thread> threads;
    std::vector<u64> symbols;  // addresses of module variables: gpu * num_symbols + symbol
    u32 num_symbols = 0;
    std::unordered_map<u64, Mbarrier> mbarriers;
    std::unordered_map<u32, BulkGroups> bulk;  // by thread
    Network network;

   private:
    std::string nearest(u64 address) const;
    void prepare();
    bool begin_next(Stream& stream);
    void fill(Launch& launch);
    void give_shared(Launch& launch, Block& block);
    void begin_block(Launch& launch);
    void end_block(Launch& launch, u32 at);
    void end_launch(Stream& stream);
    bool turn(Stream& stream);
    Warp* choose_warp(Launch& launch);
    bool step(Warp& warp);
    u32 choose_lanes(const Warp& warp);
    void finish(Warp& warp, Next next, u32 mask);
    [[noreturn]] void hang(const char* why) const;
    void land(std::size_t at);
    u32 take_agent();
    Actor copier(const Copy& copy, bool writes) const;
    void read_piece(Copy& copy, u32 bytes);
    void write_piece(Copy& copy, u32 bytes);
    u64 late();
    bool begin_landing(Message& message);
    void land_piece(Message& message);
    void land_signal(Message& message);
    Actor lander(const Message& message, u32 cls, bool writes) const;

    std::map<std::pair<u32, u32>, Stream> streams_;
    std::vector<Stream*> active_;
    std::vector<std::shared_ptr<Copy>> copies_;
    std::vector<u32> agents_issuer_;
    std::deque<u32> free_agents_;
    u64 moves_ = 0;
    u32 num_lanes_ = 0, next_block_number_ = 0, next_serial_ = 0;
};

}  // namespace ptx
