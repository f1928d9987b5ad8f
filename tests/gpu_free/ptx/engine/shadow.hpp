// The race detector's memory of memory: for each word the last write and everyone who read since. A word that
// is accessed in parts is remembered byte by byte, so that neighbours are not blamed.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "clocks.hpp"

namespace ptx {

// How strong an access is. The order matters: a larger scope has a larger number.
enum Class : u8 { kNone, kWeak, kCta, kGpu, kSys, kAsync, kClasses };

struct Access {
    u32 thread : 24;
    u32 cls : 4;
    u32 log_size : 3;
    u32 writes : 1;
    u32 time;
    u32 text;

    bool set() const { return cls != kNone; }
    bool strong() const { return cls >= kCta && cls <= kSys; }
};

// Who accesses: a lane, or a bulk copy that knows what its issuer knew.
struct Actor {
    Access access;
    const Clock* others;
    u32 issuer;
    u32 issuer_time;
    u32 issuer_sealed;

    bool knows(u32 thread, u32 time) const {
        if (thread == access.thread) return true;
        return (thread == issuer ? issuer_time : others->seen[thread]) >= time;
    }
    bool knows_sealed(u32 thread, u32 time) const {
        if (thread == issuer && issuer_sealed >= time) return true;
        return !others->sealed.empty() && others->sealed[thread] >= time;
    }
};

// What the detector asks of the machine around it.
struct World {
    virtual ~World() = default;
    virtual bool covers(u32 cls, u32 thread, u32 other) const = 0;
    // Whether a thread made a proxy fence for shared memory after `time`, which the actor knows of.
    virtual bool fenced(const Actor& actor, u32 thread, u32 time) const = 0;
    [[noreturn]] virtual void race(u64 offset,
                                   const Actor& actor,
                                   const Access& other,
                                   const char* why) const = 0;
};

struct Released {
    Knowledge knowledge;
    u8 release_scope;
    u8 write_scope;
};

class Shadow {
   public:
    Shadow(u64 bytes, const World& world);
    ~Shadow();

    void next_run();
    void forget(u64 offset, u64 bytes);
    void read(u64 offset, u32 bytes, const Actor& actor, bool shared) {
        access(offset, bytes, actor, shared);
    }
    void write(u64 offset, u32 bytes, const Actor& actor, bool shared) {
        access(offset, bytes, actor, shared);
    }
    bool initialised(u64 offset, u32 bytes) const;
    // The last write of a word, for loads that may not see any write of their own kernel.
    Access last_write(u64 offset) const;

    // What those who read a word may acquire.
    std::vector<Released>& released(u64 offset);
    const std::vector<Released>* find_released(u64 offset) const;

    bool war_needs_fence = true;
    u32 threads = 0;  // of this run, bulk copies included

   private:
    struct Crowd;
    struct Cell {
        Access write;
        Access read;
        u32 crowd;
        u32 run;
    };

    void access(u64 offset, u32 bytes, const Actor& actor, bool shared);
    void visit(Cell& cell, u64 offset, const Actor& actor, bool shared);
    void check(const Access& old, u64 offset, const Actor& actor, bool shared, bool& ordered);
    void note_read(Cell& cell, const Actor& actor, bool shared);
    void note_write(Cell& cell, u64 offset, const Actor& actor, bool shared);
    void check_crowd(Cell& cell, u64 offset, const Actor& actor, bool shared, bool writes_only);
    void keep(Cell& cell, const Access& access);
    void empty_crowd(Cell& cell);
    void open(Cell& cell);
    Cell& fresh(u64 word);

    const World& world_;
    std::unique_ptr<Cell[], void (*)(void*)> cells_;
    std::vector<Cell> bytes_;  // four for each opened word
    std::vector<u32> free_bytes_;
    std::vector<std::unique_ptr<Crowd>> crowds_;
    std::vector<u32> free_crowds_;
    std::unordered_map<u64, std::vector<Released>> released_;
    u32 run_ = 1;
};

}  // namespace ptx
