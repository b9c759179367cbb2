"""Pipeline schedules as data: actions, their times, and memory."""
