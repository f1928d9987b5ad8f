// program.hpp: in which order ranks call. What is sent comes in the same order on every rank; when each rank
// receives is its own affair, within what the library allows.
#pragma once

#include <string>
#include <vector>

#include "model.hpp"

struct Step {
    enum class Kind { dispatch, receive, combine, reduce };
    Kind kind;
    int index;  // of the round, or of the answer
};

// A family of programs.
struct Scenario {
    const char* name;
    int min_answers;  // combines after each dispatch
    int max_answers;
    bool crossed;           // an answer may be to the round before the last
    int percent_pulled;     // of the answers
    int percent_lazy;       // how often a rank leaves a receive for later
    bool shrinks = false;   // ranks may be left out
    const char* left = "";  // where one of them ends: a point of host/faults.hpp
};

struct Program {
    Scenario scenario;
    std::vector<model::Answer> answers;
    std::vector<Step> sends;  // dispatches and combines, the same on every rank
};

// Null: there is no scenario of that name.
const Scenario* find_scenario(const std::string& name);

Program make_program(const Scenario& scenario, int num_rounds, std::uint64_t seed);

// All steps of one rank: its receives put between the sends, before the library or the program's end demands
// them.
std::vector<Step> steps_of(const Program& program, int rank, std::uint64_t seed);
