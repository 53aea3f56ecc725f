-- Part of every script that looks at the time: the server's clock, read once.
local call = redis.call
local time = call('TIME')
local micros = time[1] * 1000000 + time[2]
local millis = math.floor(micros / 1000)
