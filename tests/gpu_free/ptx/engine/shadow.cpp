// See shadow.hpp.
#include "shadow.hpp"

#include <cstdlib>
#include <cstring>

namespace ptx {

namespace {

// In Cell::run, beside the number of the run.
constexpr u32 kOpened = 0x80000000u;    // the bytes have cells of their own
constexpr u32 kReleased = 0x40000000u;  // somebody may acquire from this word
constexpr u32 kRun = 0x3fffffffu;
constexpr std::size_t kFew = 16;

bool same_kind(const Access& a, const Access& b) {
    return a.thread == b.thread && a.cls == b.cls && a.writes == b.writes && a.log_size == b.log_size;
}

}  // namespace

// Accesses that one cell cannot hold: many readers, or strong writes that nothing orders. A few are a list;
// more weak reads are a vector over threads.
struct Shadow::Crowd {
    std::vector<Access> few;
    std::vector<u32> times[kClasses];
    u32 texts[kClasses] = {};
    u32 sizes[kClasses] = {};
    bool dense = false, has_writes = false;

    void clear() {
        few.clear();
        for (auto& of_class : times) of_class.clear();
        dense = has_writes = false;
    }

    void add(const Access& access, u32 threads) {
        for (Access& old : few)
            if (same_kind(old, access)) return void(old = access);
        has_writes |= access.writes != 0;
        if (few.size() < kFew || access.writes) return few.push_back(access);
        auto& of_class = times[access.cls];
        if (of_class.empty()) of_class.assign(threads, 0);
        of_class[access.thread] = access.time;
        texts[access.cls] = access.text;
        sizes[access.cls] = access.log_size;
        dense = true;
    }
};

Shadow::Shadow(u64 bytes, const World& world)
    : world_(world),
      // Zero pages until touched: most of the memory never is.
      cells_(static_cast<Cell*>(std::calloc(bytes / 4 + 4, sizeof(Cell))), std::free) {
    crowds_.emplace_back();
}

Shadow::~Shadow() = default;

void Shadow::next_run() {
    ++run_;
    bytes_.clear();
    free_bytes_.clear();
    released_.clear();
    free_crowds_.clear();
    for (u32 i = 1; i < crowds_.size(); ++i) {
        crowds_[i]->clear();
        free_crowds_.push_back(i);
    }
}

Shadow::Cell& Shadow::fresh(u64 word) {
    Cell& cell = cells_[word];
    if ((cell.run & kRun) != run_) {
        cell = Cell{};
        cell.run = run_;
    }
    return cell;
}

void Shadow::forget(u64 offset, u64 bytes) {
    for (u64 word = offset / 4; word < (offset + bytes + 3) / 4; ++word) {
        Cell& cell = fresh(word);
        if (cell.run & kReleased) released_.erase(word);
        if (cell.run & kOpened) {
            for (u32 i = 0; i < 4; ++i) empty_crowd(bytes_[cell.write.time + i]);
            free_bytes_.push_back(cell.write.time);
        } else {
            empty_crowd(cell);
        }
        cell = Cell{};
        cell.run = run_;
    }
}

bool Shadow::initialised(u64 offset, u32 bytes) const {
    for (u64 at = offset; at < offset + bytes; ++at) {
        const Cell& cell = cells_[at / 4];
        if ((cell.run & kRun) != run_) return false;
        const Cell& one = cell.run & kOpened ? bytes_[cell.write.time + at % 4] : cell;
        if (!one.write.set()) return false;
    }
    return true;
}

Access Shadow::last_write(u64 offset) const {
    const Cell& cell = cells_[offset / 4];
    if ((cell.run & kRun) != run_) return Access{};
    return cell.run & kOpened ? bytes_[cell.write.time + offset % 4].write : cell.write;
}

std::vector<Released>& Shadow::released(u64 offset) {
    fresh(offset / 4).run |= kReleased;
    return released_[offset / 4];
}

const std::vector<Released>* Shadow::find_released(u64 offset) const {
    const auto found = released_.find(offset / 4);
    return found == released_.end() ? nullptr : &found->second;
}

void Shadow::open(Cell& cell) {
    u32 first;
    if (free_bytes_.empty()) {
        first = static_cast<u32>(bytes_.size());
        bytes_.resize(bytes_.size() + 4);
    } else {
        first = free_bytes_.back();
        free_bytes_.pop_back();
    }
    for (u32 i = 0; i < 4; ++i) {
        Cell& byte = bytes_[first + i];
        byte = cell;
        if (i == 0 || cell.crowd == 0) continue;
        byte.crowd = 0;
        for (const Access& access : crowds_[cell.crowd]->few) keep(byte, access);
        if (!crowds_[cell.crowd]->dense) continue;
        Crowd copy = *crowds_[cell.crowd];
        *crowds_[byte.crowd] = std::move(copy);
    }
    cell.write.time = first;
    cell.run |= kOpened;
}

void Shadow::access(u64 offset, u32 bytes, const Actor& actor, bool shared) {
    for (const u64 end = offset + bytes; offset < end;) {
        const u32 from = offset % 4, until = static_cast<u32>(std::min<u64>(4, from + end - offset));
        Cell& cell = fresh(offset / 4);
        if (actor.access.writes && !actor.access.strong() && (cell.run & kReleased)) {
            released_.erase(offset / 4);
            cell.run &= ~kReleased;
        }
        if (!(cell.run & kOpened) && until - from == 4) {
            visit(cell, offset, actor, shared);
        } else {
            if (!(cell.run & kOpened)) open(cell);
            for (u32 i = from; i < until; ++i)
                visit(bytes_[cell.write.time + i], offset - from + i, actor, shared);
        }
        offset += until - from;
    }
}

void Shadow::visit(Cell& cell, u64 offset, const Actor& actor, bool shared) {
    if (actor.access.writes) return note_write(cell, offset, actor, shared);
    bool ordered = true;
    if (cell.write.set()) check(cell.write, offset, actor, shared, ordered);
    if (cell.crowd != 0 && crowds_[cell.crowd]->has_writes) check_crowd(cell, offset, actor, shared, true);
    note_read(cell, actor, shared);
}

// Reports the race of an old access with a new one; `ordered`: whether the old one is before the new one.
void Shadow::check(const Access& old, u64 offset, const Actor& actor, bool shared, bool& ordered) {
    const Access& now = actor.access;
    ordered = actor.knows(old.thread, old.time);
    if (!ordered) {
        const bool both = old.strong() && now.strong() && old.log_size == now.log_size;
        if (both && world_.covers(old.cls, old.thread, now.thread) &&
            world_.covers(now.cls, now.thread, old.thread))
            return;
        world_.race(offset, actor, old, "is not ordered after");
    }
    if (now.cls != kAsync || old.cls == kAsync) return;
    if (shared) {
        if (!now.writes && !world_.fenced(actor, old.thread, old.time))
            world_.race(offset, actor, old, "has no fence.proxy.async by the writer before the order to");
        if (now.writes && war_needs_fence && !world_.fenced(actor, old.thread, old.time))
            world_.race(offset, actor, old, "has no fence.proxy.async between it and");
    } else if (!now.writes && !actor.knows_sealed(old.thread, old.time)) {
        world_.race(offset, actor, old, "has no fence.proxy.async between it and");
    }
}

void Shadow::note_read(Cell& cell, const Actor& actor, bool shared) {
    const Access& now = actor.access;
    const bool first = !cell.read.set() || same_kind(cell.read, now);
    // A later reader stands for the one before it, but not where each reader owes a proxy fence.
    const bool later = !shared && cell.read.cls == now.cls && cell.read.log_size == now.log_size &&
                       actor.knows(cell.read.thread, cell.read.time);
    if (first || later) {
        cell.read = now;
    } else {
        keep(cell, now);
    }
}

void Shadow::note_write(Cell& cell, u64 offset, const Actor& actor, bool shared) {
    bool write_before = true, read_before = true;
    if (cell.write.set()) check(cell.write, offset, actor, shared, write_before);
    if (cell.read.set()) check(cell.read, offset, actor, shared, read_before);
    if (cell.crowd != 0) check_crowd(cell, offset, actor, shared, false);
    if (!write_before) keep(cell, cell.write);
    if (read_before) cell.read = Access{};
    cell.write = actor.access;
}

// Checks all; those before this write are forgotten, the strong ones beside it stay.
void Shadow::check_crowd(Cell& cell, u64 offset, const Actor& actor, bool shared, bool writes_only) {
    Crowd& crowd = *crowds_[cell.crowd];
    std::size_t kept = 0;
    for (const Access old : crowd.few) {
        bool ordered = false;
        if (old.writes || !writes_only) check(old, offset, actor, shared, ordered);
        if (writes_only || !ordered) crowd.few[kept++] = old;
    }
    crowd.few.resize(kept);
    if (writes_only || !crowd.dense) {
        if (kept == 0 && !crowd.dense) empty_crowd(cell);
        return;
    }
    bool left = false;
    for (u32 cls = kWeak; cls < kClasses; ++cls) {
        auto& times = crowd.times[cls];
        for (u32 thread = 0; thread < times.size(); ++thread) {
            if (times[thread] == 0) continue;
            bool ordered = false;
            check(Access{thread, cls, crowd.sizes[cls], 0, times[thread], crowd.texts[cls]}, offset, actor,
                  shared, ordered);
            if (ordered) times[thread] = 0;
            left |= !ordered;
        }
    }
    if (!left && kept == 0) empty_crowd(cell);
}

void Shadow::keep(Cell& cell, const Access& access) {
    if (cell.crowd == 0) {
        if (free_crowds_.empty()) {
            free_crowds_.push_back(static_cast<u32>(crowds_.size()));
            crowds_.push_back(std::make_unique<Crowd>());
        }
        cell.crowd = free_crowds_.back();
        free_crowds_.pop_back();
    }
    crowds_[cell.crowd]->add(access, threads);
}

void Shadow::empty_crowd(Cell& cell) {
    if (cell.crowd == 0) return;
    crowds_[cell.crowd]->clear();
    free_crowds_.push_back(cell.crowd);
    cell.crowd = 0;
}

}  // namespace ptx
