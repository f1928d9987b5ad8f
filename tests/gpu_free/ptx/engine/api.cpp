// What Python calls. Errors are a number and a text; nothing is thrown across the border.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "ops.hpp"

namespace ptx {

namespace {

std::unordered_map<std::string, Handler>& handlers() {
    static std::unordered_map<std::string, Handler> all;
    return all;
}

void add_all() {
    add_integer_ops();
    add_bit_ops();
    add_float_ops();
    add_half_ops();
    add_compare_ops();
    add_convert_ops();
    add_control_ops();
    add_access_ops();
    add_warp_ops();
    add_barrier_ops();
    add_bulk_ops();
    add_mbarrier_ops();
    add_network_ops();
}

// The numbers of one instruction, as decode.py lays them out.
constexpr std::size_t kRecord = 26;

Instr decoded(const i64* record) {
    Instr instr{};
    instr.run = reinterpret_cast<Handler>(record[0]);
    instr.guard = static_cast<i32>(record[1]);
    instr.negated = record[2] != 0;
    instr.target = static_cast<u32>(record[3]);
    instr.text = static_cast<u32>(record[4]);
    instr.num_dst = static_cast<u8>(record[5]);
    instr.num_src = static_cast<u8>(record[6]);
    for (int i = 0; i < 4; ++i) instr.dst[i] = static_cast<i32>(record[7 + i]);
    for (int i = 0; i < 8; ++i) instr.src[i] = static_cast<i32>(record[11 + i]);
    for (int i = 0; i < 7; ++i) instr.num[i] = record[19 + i];
    return instr;
}

struct Session {
    Machine machine;
    std::string error;
};

}  // namespace

void add_handler(const std::string& name, Handler handler) {
    handlers()[name] = handler;
}

Handler find_handler(const std::string& name) {
    if (handlers().empty()) add_all();
    const auto found = handlers().find(name);
    return found == handlers().end() ? nullptr : found->second;
}

}  // namespace ptx

using ptx::i64;
using ptx::u32;
using ptx::u64;

extern "C" {

i64 ptx_handler(const char* name) {
    return reinterpret_cast<i64>(ptx::find_handler(name));
}

void* ptx_program() {
    return new ptx::Program;
}
void ptx_program_free(void* program) {
    delete static_cast<ptx::Program*>(program);
}

void ptx_program_fill(void* program_,
                      const i64* records,
                      u64 num_records,
                      const u64* constants,
                      u64 num_constants,
                      const u32* tables,
                      u64 num_tables) {
    auto& program = *static_cast<ptx::Program*>(program_);
    for (u64 i = 0; i < num_records; ++i) program.code.push_back(ptx::decoded(records + i * ptx::kRecord));
    for (u64 i = 0; i < num_constants; ++i) {
        program.constants.emplace_back();
        program.constants.back().fill(constants[i]);
    }
    program.tables.assign(tables, tables + num_tables);
}
void ptx_program_text(void* program, const char* text) {
    static_cast<ptx::Program*>(program)->texts.emplace_back(text);
}
void ptx_program_entry(void* program, const char* name, u32 start, u32 num_registers, u32 static_shared) {
    static_cast<ptx::Program*>(program)->entries.push_back({start, num_registers, static_shared, name});
}

void* ptx_machine(void* program, u32 num_gpus, u64 seed, u64 bytes) {
    return new ptx::Session{ptx::Machine(*static_cast<ptx::Program*>(program), num_gpus, seed, bytes), {}};
}
void ptx_machine_free(void* session) {
    delete static_cast<ptx::Session*>(session);
}
const char* ptx_error(void* session) {
    return static_cast<ptx::Session*>(session)->error.c_str();
}

void ptx_options(void* session, const u64* values) {
    auto& machine = static_cast<ptx::Session*>(session)->machine;
    machine.options.ns_per_step = values[0];
    machine.options.hang_steps = values[1];
    machine.options.resident_blocks = static_cast<u32>(values[2]);
    machine.options.split_one_in = static_cast<u32>(values[3]);
    machine.options.check_uninitialised = values[4] != 0;
    machine.options.copy_delay = static_cast<u32>(values[5]);
    machine.shadow.war_needs_fence = values[6] != 0;
    machine.options.network_delay = static_cast<u32>(values[7]);
}

// Returns the address; 0: no room.
u64 ptx_alloc(void* session, int gpu, u64 bytes, u64 align, const char* name) {
    auto& memory = static_cast<ptx::Session*>(session)->machine.memory;
    const u32 made = memory.allocate(bytes, align, name, gpu);
    return made == 0 ? 0 : memory[made].begin + ptx::kBase;
}

// Where a range lies in this process; null: it is not within one allocation.
void* ptx_data(void* session, u64 address, u64 bytes) {
    auto& memory = static_cast<ptx::Session*>(session)->machine.memory;
    const u64 offset = address - ptx::kBase;
    const u32 found = memory.find(offset);
    return found == 0 || bytes > memory[found].end - offset ? nullptr : memory.data(offset);
}

void ptx_symbols(void* session, const u64* addresses, u32 num_symbols, u32 num_gpus) {
    auto& machine = static_cast<ptx::Session*>(session)->machine;
    machine.num_symbols = num_symbols;
    machine.symbols.assign(addresses, addresses + u64{num_symbols} * num_gpus);
}

// addresses: of each GPU's memory that others reach by the network; handles of queues: first_queue and so on.
void ptx_network(void* session, const u64* addresses, u64 bytes, i64 first_queue, u32 num_queues) {
    auto& machine = static_cast<ptx::Session*>(session)->machine;
    machine.network.heaps.clear();
    for (u32 gpu = 0; gpu < machine.num_gpus; ++gpu)
        machine.network.heaps.push_back(addresses[gpu] - ptx::kBase);
    machine.network.bytes = bytes;
    machine.network.first_queue = first_queue;
    machine.network.num_queues = num_queues;
}

// geometry: grid x y z, block x y z.
void ptx_launch(
    void* session, u32 gpu, u32 stream, u32 entry, const u32* geometry, u32 shared_bytes, u64 params) {
    auto& machine = static_cast<ptx::Session*>(session)->machine;
    auto launch = std::make_unique<ptx::Launch>();
    launch->entry = &machine.program.entries[entry];
    launch->gpu = gpu;
    launch->stream = stream;
    std::copy(geometry, geometry + 3, launch->grid);
    std::copy(geometry + 3, geometry + 6, launch->block);
    launch->shared_bytes = shared_bytes;
    launch->params = params;
    machine.enqueue(std::move(launch));
}

int ptx_run(void* session_, u64 max_steps, u64* steps) {
    auto& session = *static_cast<ptx::Session*>(session_);
    try {
        *steps = session.machine.run(max_steps);
        return 0;
    } catch (const ptx::Error& error) {
        session.error = error.message;
        return static_cast<int>(error.kind);
    }
}

}  // extern "C"
