// doorbell.hpp: sleeping and waking, moment by moment.
#pragma once

// Ends the program if a sleeper is forgotten or sleeps without need.
void run_doorbell();
